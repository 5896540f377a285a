"""Strategies that create sessions, compared: `ortmulti bench create`."""
