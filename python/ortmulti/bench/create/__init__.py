"""Comparing strategies of creation: each measurement in a fresh process, repeated, in turns, with tables and plots.

from ortmulti.bench.create import Plan, compare
from pathlib import Path

result = compare(Plan(models=[Path("model.onnx")], device_sets=[("cpu", "cpu")], repeat=5, cores=2))
"""

from __future__ import annotations

from ortmulti.bench.create.comparison import Progress, compare, failures
from ortmulti.bench.create.plan import Case, Options, Plan

__all__ = ["Case", "Options", "Plan", "Progress", "compare", "failures"]
