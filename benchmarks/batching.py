"""Does a pool with batching sustain four times what one request at a time does, and how long do requests wait then?

On one device, in rounds, each of them:

- single: one request at a time, without batching: its rate is what the load is made of;
- batch: runs of a whole batch by a session, alone: their median time;
- load: requests arrive at --times times the first rate (Poisson), at a pool with
  `batching=Batching(max_size, max_delay_ms)`; latency is counted from when a request was to arrive.

    python benchmarks/batching.py --json batching.json

Exit status 1 if in the median of the rounds less than --least-share of what arrived was answered in time, or the 99th
percentile of the latency is above max_delay plus twice a batch's run. Every shape that a batch can have is run before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import Batching
from ortmulti.bench import models
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.serve import clients
from ortmulti.bench.serve.clients import NANOSECONDS, ClosedLoop, arrival_times, ask_at

TIMES = 4.0
LEAST_SHARE = 0.95
BATCH_RUNS = 20


def one_at_a_time(pool: ortmulti.Pool, feed: dict[str, Any], seconds: float) -> float:
    """Requests a second."""
    with ClosedLoop([lambda: pool.run(None, feed)]) as loop:
        loop.until_answered()
        begin, end = loop.go_on(seconds)
    return float(clients.closed_loop(loop.answers[0], begin, end)["throughput"])


def batch_seconds(session: ortmulti.InferenceSession, feed: dict[str, Any]) -> float:
    """The median of a run's time."""
    times = []
    for _ in range(BATCH_RUNS):
        begin = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def under_load(pool: ortmulti.Pool, feed: dict[str, Any], rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """What an open loop says (`clients.open_loop`), and how many requests a run had on average."""
    warm = min(0.5, seconds / 2)
    before = pool.stats().devices[0]

    def submit(_: int) -> Future[list[Any]]:
        return pool.submit(None, feed)

    times = arrival_times(rate, warm + seconds, "poisson", seed)
    arrivals, start, now = ask_at(submit, times, patience=warm + seconds)
    after = pool.stats().devices[0]
    begin = start + int(warm * NANOSECONDS)
    result = clients.open_loop(arrivals, begin, begin + int(seconds * NANOSECONDS), now)
    return {**result, "requests_a_run": (after.done - before.done) / max(1, after.runs - before.runs)}


def measure(
    model: Path, device: str, batching: Batching, times: float, rounds: int, seconds: float, sequence: int
) -> list[dict[str, Any]]:
    """The rounds."""
    found = []
    feed = models.sample_inputs(model, 1, sequence)
    whole = models.sample_inputs(model, batching.max_size, sequence)
    with ortmulti.load(model, device) as single, ortmulti.load(model, device, batching=batching) as pool:
        for size in range(1, batching.max_size + 1):
            # First runs of a shape search algorithms and make memory.
            shaped = models.sample_inputs(model, size, sequence)
            for sessions in (single.sessions, pool.sessions):
                sessions[0].run(None, shaped)
        # And so does each thread that runs: an uncounted load.
        under_load(pool, feed, times * one_at_a_time(single, feed, seconds), seconds, rounds)
        for number in range(rounds):
            rate = one_at_a_time(single, feed, seconds)
            run = batch_seconds(pool.sessions[0], whole)
            load = under_load(pool, feed, times * rate, seconds, number)
            limit = batching.max_delay_ms / 1000 + 2 * run
            found.append({"single": rate, "batch_seconds": run, "limit_seconds": limit, **load})
    return found


def summarize(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians: "single", "offered" and "throughput" a second, "share" of the latter two, in seconds "batch_seconds",
    "p50", "p99" and "limit_seconds", and "p99_over_limit"; the shares are of the same round."""

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    return {
        **{key: median([one[key] for one in rounds]) for key in ("single", "offered", "throughput")},
        "share": median([one["throughput"] / one["offered"] for one in rounds]),
        **{key: median([one[key] for one in rounds]) for key in ("batch_seconds", "limit_seconds", "requests_a_run")},
        **{key: median([one["latency"][key] for one in rounds]) for key in ("p50", "p99")},
        "p99_over_limit": median([one["latency"]["p99"] / one["limit_seconds"] for one in rounds]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="an .onnx file (default: a matmul, made for it)")
    parser.add_argument("--megabytes", type=int, default=64, help="size of that matmul (default: 64)")
    parser.add_argument("--sequence", type=int, default=16, help="of a model's dynamic dimensions (default: 16)")
    parser.add_argument("--device", default="all", help="one device (default: the first)")
    parser.add_argument("--max-size", type=int, default=32, help="of a batch (default: 32)")
    parser.add_argument("--max-delay-ms", type=float, default=5.0, help="default: 5")
    parser.add_argument("--sizes", help="the sizes that runs have, such as 8,16,32 (default: any)")
    parser.add_argument("--times", type=float, default=TIMES, help=f"the load's rate (default: {TIMES:g})")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load (default: 3)")
    parser.add_argument("--least-share", type=float, default=LEAST_SHARE, help=f"default: {LEAST_SHARE}")
    parser.add_argument("--most-p99", type=float, default=1.0, help="p99 over its limit (default: 1)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    device = parse_devices(args.device)[0]
    sizes = tuple(map(int, args.sizes.split(","))) if args.sizes else ()
    batching = Batching(args.max_size, max_delay_ms=args.max_delay_ms, sizes=sizes)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        model = args.model or models.make("matmul", Path(name), megabytes=args.megabytes)
        rounds = measure(model, device, batching, args.times, args.rounds, args.seconds, args.sequence)
    summary = summarize(rounds)
    print(
        f"one request at a time: {summary['single']:.0f} a second; a batch of {args.max_size}: "
        f"{summary['batch_seconds'] * 1e3:.2f} ms\n"
        f"arrived: {summary['offered']:.0f} a second, answered: {summary['throughput']:.0f}, "
        f"{summary['requests_a_run']:.1f} a run\n"
        f"latency p50 {summary['p50'] * 1e3:.2f} ms, p99 {summary['p99'] * 1e3:.2f} ms; max_delay + 2 runs: "
        f"{summary['limit_seconds'] * 1e3:.2f} ms"
    )
    if args.json:
        report = {
            "model": model.stem,
            "device": device,
            "batching": {"max_size": args.max_size, "max_delay_ms": args.max_delay_ms, "sizes": sizes},
            "times": args.times,
            "summary": summary,
            "rounds": rounds,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(summary["share"] < args.least_share or summary["p99_over_limit"] > args.most_p99)


if __name__ == "__main__":
    sys.exit(main())
