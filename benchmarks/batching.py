"""Does a pool with batching sustain four times what one request at a time does, and how long do requests wait then?

On one device, in rounds, each of them:

- single: one request at a time, without batching: its rate is what the load is made of;
- batch: runs of a whole batch by a session, alone: their median time;
- load: requests arrive at --times times the first rate (Poisson), at a pool with
  `batching=Batching(max_size, max_delay_ms)`; latency is counted from when a request was to arrive.

    python -m benchmarks.batching matmul:megabytes=64 --json batching.json

Exit status 1 if in the median of the rounds less than --least-share of what arrived was answered in time, or the 99th
percentile of the latency is above max_delay plus twice a batch's run. Every shape that a batch can have is run before.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import Batching
from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, numbers, option
from ortmulti.bench.serve.clients import NANOSECONDS, arrival_times, ask_at, measure_loop, open_loop

BATCH_RUNS = 20
MS: Any = {"scale": 1e-3}


@dataclass
class Load(Script[str]):
    """The options of the command line."""

    kind, columns = "batching", (
        Column("single", "one at a time/s"),
        Column("batch_seconds", "a batch, ms", **MS),
        Column("offered", "offered/s"),
        Column("throughput", "answers/s"),
        Column("share", "share", lambda one: one["throughput"] / one["offered"]),
        Column("requests_a_run", "requests a run"),
        Column("p50", "p50, ms", lambda one: one["latency"]["p50"], **MS),
        Column("p99", "p99, ms", lambda one: one["latency"]["p99"], **MS),
        Column("limit_seconds", "limit, ms", **MS),
        Column("p99_over_limit", "p99 / limit", lambda one: one["latency"]["p99"] / one["limit_seconds"]),
    )  # fmt: skip
    models: Sequence[Path] = option((), "names of `ortmulti models`, or .onnx files")
    sequence: int = option(16, "of a model's dynamic dimensions")
    device: str = option("all", "the first device of this list", lambda text: parse_devices(text)[0])
    max_size: int = option(32, "of a batch")
    max_delay_ms: float = option(5.0, "of Batching")
    sizes: tuple[int, ...] = option((), "the sizes that runs have, such as 8,16,32", numbers)
    times: float = option(4.0, "the load's rate, over that of one at a time")
    repeat: int = option(5, "rounds")
    seconds: float = option(3.0, "of each load")
    least_share: float = option(0.95, "of what arrived")
    most_p99: float = option(1.0, "p99 over its limit")

    def cases(self, number: int = 0) -> Sequence[str]:
        return [str(model) for model in self.models]

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        batching = Batching(self.max_size, max_delay_ms=self.max_delay_ms, sizes=self.sizes)
        self._pools = {}
        for model in self.cases():
            step(model)
            single = self.stack.enter_context(ortmulti.load(model, self.device))
            pool = self.stack.enter_context(ortmulti.load(model, self.device, batching=batching))
            for size in range(1, self.max_size + 1):
                # First runs of a shape search algorithms and make memory.
                shaped = models.sample_inputs(model, size, self.sequence)
                for sessions in (single.sessions, pool.sessions):
                    sessions[0].run(None, shaped)
            self._pools[model] = single, pool
            self.measure(model, -1)  # each thread has its first runs, too

    def measure(self, case: str, number: int) -> dict[str, Any]:
        single, pool = self._pools[case]
        feed, whole = (models.sample_inputs(case, size, self.sequence) for size in (1, self.max_size))
        rate = measure_loop([lambda: single.run(None, feed)], self.seconds)["throughput"]
        times = []
        for _ in range(BATCH_RUNS):
            begin = time.perf_counter()
            pool.sessions[0].run(None, whole)
            times.append(time.perf_counter() - begin)
        run = statistics.median(times)
        load = self._under_load(pool, feed, self.times * rate, number + 1)
        return {"single": rate, "batch_seconds": run, "limit_seconds": self.max_delay_ms / 1000 + 2 * run, **load}

    def _under_load(self, pool: ortmulti.Pool, feed: dict[str, Any], rate: float, seed: int) -> dict[str, Any]:
        warm = min(0.5, self.seconds / 2)
        before = pool.stats().devices[0]

        def submit(_: int) -> Future[list[Any]]:
            return pool.submit(None, feed)

        times = arrival_times(rate, warm + self.seconds, seed)
        arrivals, start, now = ask_at(submit, times, patience=warm + self.seconds)
        after = pool.stats().devices[0]
        begin = start + int(warm * NANOSECONDS)
        found = open_loop(arrivals, begin, begin + int(self.seconds * NANOSECONDS), now)
        return {**found, "requests_a_run": (after.done - before.done) / max(1, after.runs - before.runs)}

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        limits, found = document["settings"], super().failures(document)
        for row in document["rows"]:
            if row["share"]["median"] < limits["least_share"]:
                found.append(f"{row['case']}: {row['share']['median']:.3f} of the requests were answered in time")
            if row["p99_over_limit"]["median"] > limits["most_p99"]:
                found.append(f"{row['case']}: p99 is {row['p99_over_limit']['median']:.2f} times its limit")
        return found


if __name__ == "__main__":
    sys.exit(script.main(Load))
