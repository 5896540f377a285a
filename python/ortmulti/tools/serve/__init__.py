"""Throughput and latency of a pool's backends: closed loops and open ones, on one device and on more.

from pathlib import Path
from ortmulti.tools.serve import RunPlan, bench

result = bench(RunPlan(models=[Path("model.onnx")], device_sets=[("cpu",), ("cpu", "cpu")]))
"""

from __future__ import annotations

from .bench import bench, failures
from .loads import Load, closed, parse_rate
from .plan import RunCase, RunPlan, RunProgress, doubling
from .variants import Variant, parse_variant

__all__ = [
    "Load",
    "RunCase",
    "RunPlan",
    "RunProgress",
    "Variant",
    "bench",
    "closed",
    "doubling",
    "failures",
    "parse_rate",
    "parse_variant",
]
