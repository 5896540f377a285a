"""Throughput and latency of pools, and of onnxruntime in threads: closed and open loops, on one device and on more.

from pathlib import Path
from ortmulti.bench.serve import RunPlan, bench

result = bench(RunPlan(models=[Path("model.onnx")], device_sets=[("cpu",), ("cpu", "cpu")]))
"""

from __future__ import annotations

from ortmulti.bench.serve.cases import Load, Variant, closed, parse_rate, parse_variant

from .comparison import bench, failures
from .plan import RunCase, RunPlan, RunProgress, doubling

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
