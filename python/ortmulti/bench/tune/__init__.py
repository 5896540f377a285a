"""Finds settings that suit a model on this machine by measurement, and writes them to a file for `load`.

The public names are `ortmulti.tune`, `ortmulti.Tuning` and `ortmulti.TuningWarning`; docs/tune.md describes the method.
"""
