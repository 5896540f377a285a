"""Comparing strategies of creation: each measurement in a fresh process, repeated, in turns, with tables and plots.

from ortmulti.bench.create.plan import Plan
from pathlib import Path

result = Plan(models=[Path("model.onnx")], device_sets=[("cpu", "cpu")]).run()
"""
