"""One model on several devices behind one queue."""

from __future__ import annotations

from ortmulti.pool.configuration import Batching, CudaGraph, Warmup
from ortmulti.pool.futures import PoolFuture
from ortmulti.pool.load import load
from ortmulti.pool.pool import Pool
from ortmulti.pool.stats import DeviceStats, Latency, PoolStats

__all__ = ["Batching", "CudaGraph", "DeviceStats", "Latency", "Pool", "PoolFuture", "PoolStats", "Warmup", "load"]
