"""One model on several devices behind one queue."""

from __future__ import annotations

from ortmulti._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ortmulti.pool.configuration": "Batching CudaGraph Warmup",
        "ortmulti.pool.futures": "PoolFuture RequestTiming",
        "ortmulti.pool.pool": "Pool",
        "ortmulti.pool.stats": "DeviceStats Latency PoolStats",
    },
)
