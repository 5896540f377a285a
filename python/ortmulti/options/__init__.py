"""Options of sessions and of the environment."""
