"""Comparing strategies: each measurement in a fresh process, repeated, in turns, with tables and plots.

from ortmulti.compare import Plan, compare
from pathlib import Path

result = compare(Plan(models=[Path("model.onnx")], device_sets=[("cpu", "cpu")], repeat=5, cores=2))
"""

from __future__ import annotations

from .comparison import Progress, compare, failures
from .plan import Case, Options, Plan

__all__ = ["Case", "Options", "Plan", "Progress", "compare", "failures"]
