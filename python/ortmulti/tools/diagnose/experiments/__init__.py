"""What is measured beside the accounts; each module's `measure` runs in a process of its own."""
