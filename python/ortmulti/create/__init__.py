"""One call of the core that creates sessions."""
