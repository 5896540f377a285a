"""Throughput and latency of pools, and of onnxruntime in threads: closed and open loops, on one device and on more.

from pathlib import Path
from ortmulti.bench.serve import RunPlan

result = RunPlan([Path("model.onnx")], [("cpu",), ("cpu", "cpu")], ["core", "threads"]).run()
"""

from __future__ import annotations

from .measure_pool import parse_variant
from .plan import RunCase, RunPlan, doubling, parse_rate

__all__ = ["RunCase", "RunPlan", "doubling", "parse_rate", "parse_variant"]
