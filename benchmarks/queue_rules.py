"""What priorities and deadlines do for the callers of a pool.

    python -m benchmarks.queue_rules --json rules.json

deadlines: --requests requests with random deadlines from 1 ms to 1 s, by `run`, `submit` and `run_async` in turn, of a
    model that is one long node. How late were the callers free? Counted are the requests by the pool's own account.
priorities: one client with priority 0 and pauses of 1 to 5 runs, alone and while --waiting requests of priority -1
    always wait, or of priority 0. With two sessions of one thread.
soak: for --seconds, a full queue of mixed deadlines, priorities, cancels and joined runs: answers a second in each of
    ten parts, and the memory of the process.

Each has a process of its own, on the CPU. Exit status 1 if an answer is wrong, a caller was free more than 5 ms late, a
request was not counted once, the 99th percentile of priority 0 grew to more than 1.5 times, or the last part of the
soak had less than 0.98 of the first one's rate.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

import ortmulti as om
from benchmarks.graphs import product
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.script import Script, names, option

MOST_LATE, MOST_P99, LEAST_RATE = 5e-3, 1.5, 0.98
CASES = ("deadlines", "priorities", "soak")


def load(model: bytes, sessions: int, **arguments: Any) -> om.Pool:
    options = om.SessionOptions()
    options.intra_op_num_threads = 1
    return om.load(model, "cpu", sessions, options, warmup=True, **arguments)


def deadlines(spec: dict[str, Any]) -> dict[str, Any]:
    size, callers = 4096, 20
    x = np.ones((1024, size), np.float32)
    late: list[float] = []
    outcomes: Counter[str] = Counter()
    with load(product(size), 1) as pool:
        begin = time.perf_counter()
        pool.run({"v0": x})
        node = time.perf_counter() - begin
        ways: tuple[Callable[[float], Any], ...] = (
            lambda timeout: pool.run({"v0": x}, timeout=timeout),
            lambda timeout: pool.submit({"v0": x}, timeout=timeout).result(),
            lambda timeout: asyncio.run(pool.run_async({"v0": x}, timeout=timeout)),
        )

        def ask(caller: int) -> None:
            numbers = random.Random(caller)
            for number in range(spec["requests"] // callers):
                timeout = numbers.uniform(1e-3, 1.0)
                asked = time.perf_counter()
                try:
                    ways[number % len(ways)](timeout)
                    outcomes["answered"] += 1
                except om.DeadlineExceeded:
                    outcomes["late"] += 1
                late.append(time.perf_counter() - asked - timeout)

        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(ask, range(callers)))
        stats = pool.stats()
    [device] = stats.devices
    counted = device.done - 1 + device.failed + stats.failed_waiting  # one was the first run
    return {
        "node_ms": node * 1e3,
        "outcomes": dict(outcomes),
        "counted": counted,
        "latest_ms": max(late) * 1e3,
        "p99_late_ms": float(np.quantile(late, 0.99)) * 1e3,
    }


def priorities(spec: dict[str, Any]) -> dict[str, Any]:
    x = np.ones((64, 1024), np.float32)
    found: dict[str, Any] = {}
    with load(product(1024, 6), 2) as pool:
        run = statistics.median(_timed(lambda: pool.run({"v0": x})) for _ in range(20))

        def p99() -> dict[str, float]:
            numbers, times = random.Random(0), []
            end = time.perf_counter() + spec["seconds"] / 6
            while time.perf_counter() < end:
                times.append(_timed(lambda: pool.run({"v0": x}, priority=0)))
                time.sleep(run * numbers.uniform(1, 5))
            return {"p50_ms": float(np.quantile(times, 0.5)) * 1e3, "p99_ms": float(np.quantile(times, 0.99)) * 1e3}

        for turn in range(3):
            found[f"idle {turn}"] = p99()
            for priority in (-1, 0):
                waiting, over = threading.Event(), threading.Event()

                def fill(priority: int = priority, over: threading.Event = over) -> None:
                    feeds = iter(lambda: {"v0": x}, None)
                    for _ in pool.map(feeds, lookahead=spec["waiting"], priority=priority):
                        waiting.set()  # noqa: B023
                        if over.is_set():
                            break

                thread = threading.Thread(target=fill)
                thread.start()
                waiting.wait()
                found[f"beside {priority} {turn}"] = p99()
                over.set()
                thread.join()
    return {"run_ms": run * 1e3, **found}


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def soak(spec: dict[str, Any]) -> dict[str, Any]:
    parts: list[dict[str, float]] = []
    outcomes: Counter[str] = Counter()
    over = threading.Event()
    with load(product(1024, 4), 2, max_queue=256, batching=om.Batching(8)) as pool:

        def ask(caller: int) -> None:
            numbers = random.Random(caller)
            futures: deque[tuple[int, om.PoolFuture]] = deque()
            while not over.is_set() or futures:
                if not over.is_set():
                    value = numbers.randrange(1000)
                    x = np.full((numbers.randrange(1, 4), 1024), value, np.float32)
                    timeout = numbers.choice([None, None, 60.0, numbers.uniform(1e-3, 0.1)])
                    try:
                        futures.append(
                            (value, pool.submit({"v0": x}, timeout=timeout, priority=numbers.randrange(-1, 3)))
                        )
                    except om.DeadlineExceeded:
                        outcomes["DeadlineExceeded"] += 1
                    if numbers.random() < 0.05 and futures:
                        numbers.choice(futures)[1].cancel()
                while len(futures) > (0 if over.is_set() else 64):
                    value, future = futures.popleft()
                    try:
                        [y] = future.result()
                        outcomes["answers" if (y == value).all() else "wrong"] += 1
                    except BaseException as error:
                        outcomes[type(error).__name__] += 1

        threads = ThreadPoolExecutor(6)
        asking = [threads.submit(ask, caller) for caller in range(6)]
        done = time.perf_counter()
        answered = 0
        for _ in range(10):
            time.sleep(max(0.0, spec["seconds"] / 10 - (time.perf_counter() - done)))
            [device] = pool.stats().devices
            now = time.perf_counter()
            resident = psutil.Process().memory_info().rss
            parts.append({"rate": (device.done - answered) / (now - done), "resident": resident})
            done, answered = now, device.done
        over.set()
        for one in asking:
            one.result()
    return {"outcomes": dict(outcomes), "parts": parts}


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, in this process."""
    return {"deadlines": deadlines, "priorities": priorities, "soak": soak}[spec["case"]](spec)


@dataclass
class QueueRules(Script[str]):
    """The options of the command line."""

    kind, timeout = "queue rules", 3600.0
    which: tuple[str, ...] = option(CASES, "cases", names)
    requests: int = option(1000, "with deadlines")
    waiting: int = option(100, "requests of other callers")
    seconds: float = option(600.0, "of the soak; of the priorities half of it")

    def cases(self, number: int = 0) -> Sequence[str]:
        return self.which

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        case = measurement["case"]
        if "error" in measurement:
            return super().complaints(measurement)
        if case == "deadlines":
            late = ["a caller was free late"] if measurement["latest_ms"] > MOST_LATE * 1e3 else []
            once = measurement["counted"] == sum(measurement["outcomes"].values())
            return [*late, *([] if once else ["not each request was counted once"])]
        if case == "priorities":
            idle, beside = (
                statistics.median(measurement[f"{what} {turn}"]["p99_ms"] for turn in range(3))
                for what in ("idle", "beside -1")
            )
            return [f"the 99th percentile grew {beside / idle:.2f} times"] if beside > MOST_P99 * idle else []
        rates = [part["rate"] for part in measurement["parts"]]
        wrong = ["wrong answers"] if "wrong" in measurement["outcomes"] else []
        return [*wrong, *(["the last part was slower"] if rates[-1] < LEAST_RATE * rates[0] else [])]


if __name__ == "__main__":
    sys.exit(script.main(QueueRules))
