"""The same ResNet-50 in ortmulti and in PyTorch, at equal precision and batch, from equal places.

from benchmarks.pytorch import TorchPlan, bench

result = bench(TorchPlan(batches=(1,), precisions=("fp32",)), folder)
"""

from __future__ import annotations

from .comparison import bench, failures
from .plan import COMPILE_MODES, PLACES, PRECISIONS, ROUNDS, Setting, TorchPlan

__all__ = ["COMPILE_MODES", "PLACES", "PRECISIONS", "ROUNDS", "Setting", "TorchPlan", "bench", "failures"]
