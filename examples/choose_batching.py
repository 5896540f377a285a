"""Try a few settings of a pool with clients that each wait for their answer, and print rate and latency.

python examples/choose_batching.py model.onnx [clients] [seconds]
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import ortmulti as om

SETTINGS: dict[str, dict[str, Any]] = {
    "one at a time": {},
    "two sessions": {"sessions_per_device": 2},
    "batches of 16": {"batching": om.Batching(max_size=16)},
    "batches of 64, 2 ms": {"batching": om.Batching(max_size=64, max_delay_ms=2)},
    "two sessions, batches of 16": {"sessions_per_device": 2, "batching": om.Batching(max_size=16)},
}


def measure(model: str, settings: dict[str, Any], clients: int, seconds: float) -> om.DeviceStats:
    with om.load(model, devices="all", warmup=True, **settings) as pool:
        feed = om.example_feed(pool)
        end = time.monotonic() + seconds

        def client() -> None:
            while time.monotonic() < end:
                pool.run(feed)

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return pool.stats().devices[0]


def main(model: str, clients: str = "32", seconds: str = "3") -> None:
    print(f"{'setting':30} {'answers/s':>10} {'p50, ms':>8} {'p99, ms':>8} {'requests a run':>14}")
    for name, settings in SETTINGS.items():
        stats = measure(model, settings, int(clients), float(seconds))
        p50, p99 = stats.total.p50 * 1000, stats.total.p99 * 1000
        rate = stats.done / float(seconds)
        print(f"{name:30} {rate:10,.0f} {p50:8.2f} {p99:8.2f} {stats.batch_size.mean:14.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
