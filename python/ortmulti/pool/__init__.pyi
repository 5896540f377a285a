"""The public names of ortmulti.pool, for type checkers. `__init__.py` lists the same."""

from ortmulti.pool.configuration import Batching as Batching
from ortmulti.pool.configuration import CudaGraph as CudaGraph
from ortmulti.pool.configuration import Warmup as Warmup
from ortmulti.pool.futures import PoolFuture as PoolFuture
from ortmulti.pool.futures import RequestTiming as RequestTiming
from ortmulti.pool.pool import Pool as Pool
from ortmulti.pool.stats import DeviceStats as DeviceStats
from ortmulti.pool.stats import Latency as Latency
from ortmulti.pool.stats import PoolStats as PoolStats
