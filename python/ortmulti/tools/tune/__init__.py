"""Which settings suit a model on this machine: measured, written to a file, and used by those who load the model.

The public names are `ortmulti.tune`, `ortmulti.Tuning` and `ortmulti.TuningWarning`; docs/tune.md says how it is done.
"""
