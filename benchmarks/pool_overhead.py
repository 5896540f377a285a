"""What does a pool add to a run, and does it keep its answers apart and its memory in check under load?

Two measurements, on the CPU, with a model that adds two numbers:

- overhead: one request in flight. Blocks of `session.run`, `pool.run` and `pool.submit(...).result()` take turns; the
  result is the median of the differences to `session.run` within each round, per run.
- load: --requests requests, half from --threads Python threads and half from asyncio, each with a number of its own
  that its answer must show. Memory is the resident set, at half of the requests and at their end.

    python benchmarks/pool_overhead.py --json pool.json

Exit status 1 if `pool.run` costs more than --most-overhead microseconds over `session.run`, an answer is wrong, or the
memory grows by more than --most-growth MB over the second half.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from onnx import TensorProto, helper

import ortmulti
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import alternating, measure_rounds, of_case

MOST_OVERHEAD_US = 15.0
MOST_GROWTH_MB = 2.0
IN_FLIGHT = 64


def add() -> bytes:
    """y = x + x, of one float32."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "add",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def seconds(run: Callable[[], object], runs: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(runs):
        run()
    return (time.perf_counter_ns() - start) / 1e9


def overhead(rounds: int, runs: int, sessions: int) -> dict[str, Any]:
    """Microseconds a run: the medians of each way, and of the differences to `session.run` within a round."""
    with ortmulti.load(add(), "cpu", sessions) as pool:
        feed = {"x": np.ones(1, np.float32)}
        session = pool.sessions[0]
        ways: dict[str, Callable[[], object]] = {
            "session.run": lambda: session.run(None, feed),
            "pool.run": lambda: pool.run(None, feed),
            "pool.submit": lambda: pool.submit(None, feed).result(),
        }
        for way in ways.values():
            seconds(way, runs)
        gc.collect()
        measured = measure_rounds(
            [*ways], lambda name, _: seconds(ways[name], runs) / runs * 1e6, rounds, order=alternating
        )
    return {
        "us": {name: statistics.median(of_case(measured, name)) for name in ways},
        "over_session_run_us": {
            name: statistics.median(times[name] - times["session.run"] for times in measured) for name in ways
        },
    }


class Load:
    """Requests that know their answers, and the process's memory at half of them and at their end."""

    def __init__(self, pool: ortmulti.Pool, requests: int, threads: int) -> None:
        self.pool = pool
        self.requests = requests
        self.threads = threads
        self.wrong = 0
        self._lock = threading.Lock()

    def check(self, number: int, outputs: list[Any]) -> None:
        if outputs[0].shape != (1,) or float(outputs[0][0]) != 2.0 * number:
            with self._lock:
                self.wrong += 1

    def feed(self, number: int) -> dict[str, Any]:
        return {"x": np.array([number], np.float32)}

    def from_threads(self, first: int, count: int) -> None:
        def ask(numbers: range) -> None:
            pending = []
            for number in numbers:
                if number % 4 == 0:
                    self.check(number, self.pool.run(None, self.feed(number)))
                    continue
                pending.append((number, self.pool.submit(None, self.feed(number))))
                if len(pending) == IN_FLIGHT:
                    for asked, future in pending:
                        self.check(asked, future.result())
                    pending.clear()
            for asked, future in pending:
                self.check(asked, future.result())

        threads = [
            threading.Thread(target=ask, args=(range(first + index, first + count, self.threads),))
            for index in range(self.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async def from_asyncio(self, first: int, count: int) -> None:
        numbers = iter(range(first, first + count))

        async def ask() -> None:
            for number in numbers:
                self.check(number, await self.pool.run_async(None, self.feed(number)))

        await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))

    def run(self) -> dict[str, Any]:
        """Both ways in each half."""
        process, resident = psutil.Process(), []
        quarter = self.requests // 4
        start = time.monotonic()
        for half in range(2):
            self.from_threads(2 * half * quarter, quarter)
            asyncio.run(self.from_asyncio((2 * half + 1) * quarter, quarter))
            gc.collect()
            resident.append(process.memory_info().rss)
        return {
            "requests": 4 * quarter,
            "threads": self.threads,
            "wrong": self.wrong,
            "seconds": time.monotonic() - start,
            "resident_mb": [size / 1e6 for size in resident],
            "growth_mb": (resident[1] - resident[0]) / 1e6,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="of blocks of each way (default: 100)")
    parser.add_argument("--runs", type=int, default=200, help="in a block (default: 200)")
    parser.add_argument("--sessions", type=int, default=2, help="of the pool (default: 2)")
    parser.add_argument("--requests", type=int, default=100_000, help="under load (default: 100,000)")
    parser.add_argument("--threads", type=int, default=32, help="that ask, under load (default: 32)")
    parser.add_argument("--most-overhead", type=float, default=MOST_OVERHEAD_US, help=f"default: {MOST_OVERHEAD_US}")
    parser.add_argument("--most-growth", type=float, default=MOST_GROWTH_MB, help=f"default: {MOST_GROWTH_MB}")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)

    measured = overhead(args.rounds, args.runs, args.sessions)
    for name, value in measured["us"].items():
        print(f"{name}: {value:.1f} us a run, {measured['over_session_run_us'][name]:+.1f} us over session.run")
    with ortmulti.load(add(), "cpu", args.sessions) as pool:
        load = Load(pool, args.requests, args.threads).run()
    print(
        f"{load['requests']} requests from {load['threads']} threads and asyncio: {load['wrong']} wrong answers, "
        f"{load['requests'] / load['seconds']:.0f} a second, memory grew by {load['growth_mb']:.2f} MB over the second "
        "half"
    )
    if args.json:
        report = {"overhead": measured, "load": load, "machine": machine.describe()}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(
        measured["over_session_run_us"]["pool.run"] > args.most_overhead
        or load["wrong"] > 0
        or load["growth_mb"] > args.most_growth
    )


if __name__ == "__main__":
    sys.exit(main())
