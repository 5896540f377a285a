"""What do audits and the verdict on rows cost: answers a second, p99, and the time of a load?

In turns, for each model: pools with `Batching` as it is and with `trust=True`, which has neither, each answer --clients
clients in a closed loop; and the model is loaded without batching, with it, and with trust.

    python -m benchmarks.audits encoder resnet50 --json audits.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import Batching
from ortmulti.bench import models
from ortmulti.bench.measure import machine
from ortmulti.bench.serve import clients
from ortmulti.bench.serve.clients import ClosedLoop
from ortmulti.create.sample_inputs import sample_inputs

LOADS: dict[str, dict[str, Any]] = {"none": {}, "audited": {"trust": False}, "trusted": {"trust": True}}


def seconds_to_load(model: Path, device: str, max_size: int, given: dict[str, Any]) -> float:
    batching = Batching(max_size, **given) if given else None
    begin = time.perf_counter()
    with ortmulti.load(model, device, batching=batching):
        return time.perf_counter() - begin


def measure(
    model: Path, device: str, max_size: int, count: int, seconds: float, rounds: int, sequence: int
) -> dict[str, Any]:
    """Rates, p99 in seconds and seconds of loads, of each round."""
    found: dict[str, Any] = {"load": {name: [] for name in LOADS}, "rate": {}, "p99": {}}
    for _ in range(rounds):
        for name, given in LOADS.items():
            found["load"][name].append(seconds_to_load(model, device, max_size, given))
    with contextlib.ExitStack() as stack:
        pools = {
            name: stack.enter_context(ortmulti.load(model, device, batching=Batching(max_size, **given)))
            for name, given in LOADS.items()
            if given
        }
        declared = pools["audited"].get_inputs()
        feeds = [sample_inputs(declared, 1, sequence, seed) for seed in range(count)]  # equal ones are not audited
        loops = {
            name: stack.enter_context(ClosedLoop([partial(pool.run, None, feed) for feed in feeds]))
            for name, pool in pools.items()
        }
        for number in range(rounds + 1):  # the first one is not counted
            for name, loop in loops.items():
                loop.until_answered()
                begin, end = loop.go_on(seconds)
                if number > 0:
                    answers = [one for own in loop.answers for one in own]
                    one = clients.closed_loop(answers, begin, end)
                    found["rate"].setdefault(name, []).append(one["throughput"])
                    found["p99"].setdefault(name, []).append(one["latency"]["p99"])
        stats = pools["audited"].stats()
        found["audits"], found["audit_differences"] = stats.audits, stats.audit_differences
        found["share_of_time"] = stats.audit_seconds / ((rounds + 1) * seconds)
    return found


def ratio(found: dict[str, Any], figure: str, over: str = "trusted") -> float:
    """The median of the rounds' ratios."""
    return statistics.median(
        one / other for one, other in zip(found[figure]["audited"], found[figure][over], strict=True)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help=f".onnx files, or {', '.join(models.MODELS)}")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--max-size", type=int, default=16, help="of a batch (default: 16)")
    parser.add_argument("--clients", type=int, default=32, help="default: 32")
    parser.add_argument("--sequence", type=int, default=16, help="of open dimensions (default: 16)")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn (default: 3)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    report = {}
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        for name in args.models:
            model = Path(name) if name.endswith(".onnx") else models.make(name, folder)
            found = measure(model, args.device, args.max_size, args.clients, args.seconds, args.rounds, args.sequence)
            report[model.stem] = found
            loads = ", ".join(f"{name} {statistics.median(found['load'][name]):.3f} s" for name in LOADS)
            print(
                f"{model.stem}: rate {ratio(found, 'rate'):.3f}, p99 {ratio(found, 'p99'):.3f} of those with trust; "
                f"{found['audits']} audits, {found['share_of_time']:.2%} of the time; loads: {loads}",
                flush=True,
            )
    if args.json:
        args.json.write_text(
            json.dumps({"models": report, "settings": {**vars(args), "json": None}, "machine": machine.describe()})
            + "\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
