"""Throughput and latency of pools, and of onnxruntime in threads: closed and open loops, on one device and on more.

from pathlib import Path
from ortmulti.bench.serve import RunPlan

result = RunPlan(models=[Path("model.onnx")], device_sets=[("cpu",), ("cpu", "cpu")]).run()
"""

from __future__ import annotations

from .cases import Load, Variant, parse_rate, parse_variant
from .plan import RunCase, RunPlan, doubling

__all__ = ["Load", "RunCase", "RunPlan", "Variant", "doubling", "parse_rate", "parse_variant"]
