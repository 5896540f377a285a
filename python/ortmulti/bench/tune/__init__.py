"""Finds settings that suit a model on this machine by measurement; docs/tune.md describes the method."""
