"""One model on several devices behind one queue."""

from __future__ import annotations

from ortmulti.pool.batching import Batching
from ortmulti.pool.cuda_graph import CudaGraph
from ortmulti.pool.futures import PoolFuture
from ortmulti.pool.load import load
from ortmulti.pool.pool import Pool
from ortmulti.pool.stats import DeviceStats, Latency, PoolStats
from ortmulti.pool.warmup import Warmup

__all__ = ["Batching", "CudaGraph", "DeviceStats", "Latency", "Pool", "PoolFuture", "PoolStats", "Warmup", "load"]
