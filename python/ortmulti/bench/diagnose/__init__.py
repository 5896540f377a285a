"""Where the time goes, from the start of a process to the first answer on every device, and what would shorten it."""
