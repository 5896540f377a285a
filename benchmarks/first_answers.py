"""How long after the program's call does each device answer, where the requests are there before the sessions?

In fresh processes, with the model's files in the page cache and its optimized form in a cache of this script's own:
`load(wait="none")` on all --devices, and at once a request for each of them. From the same process: when `load` came
back, when each device answered for the first time, when the last GPU's context was there, and when each session was.
"One device" is the creation of a session and its first run: of the device whose context was the last, in the same
process; and, beside it in each round, of the first device alone in a process of its own.

    python benchmarks/first_answers.py model.onnx --devices all --repeat 5 --json first.json

With `--wait first` the load is `load(wait="first", warmup=True)`, which makes the other contexts when one device is
warm; the requests come when it has returned, and "one device" contains the warm-up.

Exit status 1 if an answer is wrong, if in the median the last answer comes more than --most-behind seconds after (the
last context + one device), or if the first one comes after the last context; with one device, or on the CPU, only
answers count. Answers are wrong if they differ between devices by more than --tolerance.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ortmulti
from ortmulti.bench import models
from ortmulti.bench.measure import fresh_process, machine, page_cache
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.rounds import alternating, measure_rounds
from ortmulti.optimized import wait_for_entries

MOST_SECONDS_BEHIND = 0.1
TOLERANCE = 1e-2


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One load, for a process of its own; all times in seconds from the call.

    Returns:
        "returned": when `load` came back; for each device "answers", "ready" (its session's creation had ended) and
        "runs" (how long the first run took); "contexts", the last one's end, None on the CPU; "one", creation and
        first run of that one's device; "outputs", of each device a few of the values; "timeline" as a table.
    """
    devices = spec["devices"]
    feed = models.sample_inputs(spec["model"], seed=1)
    answered: dict[str, int] = {}
    told = {device: threading.Event() for device in devices}

    def note(device: str, _: object) -> None:
        answered[device] = time.monotonic_ns()
        told[device].set()

    start = time.monotonic_ns()
    warmup = spec["wait"] == "first"
    pool = ortmulti.load(spec["model"], devices, wait=spec["wait"], strategy=spec["strategy"], warmup=warmup)
    returned = time.monotonic_ns()
    with pool:
        futures = {device: pool.submit(None, feed, device=device) for device in devices}
        for device, future in futures.items():
            future.add_done_callback(partial(note, device))
        outputs = {device: future.result()[0] for device, future in futures.items()}
        for event in told.values():
            event.wait()
        pool.wait_ready()
        stats = {device.device: device for device in pool.stats().devices}
        spans = pool.timeline.spans
    wait_for_entries()  # the next process counts on it

    def seconds(moment: int) -> float:
        return (moment - start) / 1e9

    contexts = {span.device: span.end_ns for span in spans if span.name == "context" and span.device in devices}
    last = max(contexts, key=contexts.__getitem__) if contexts else devices[-1]
    created = {span.device: span for span in spans if span.name == "create session"}
    warm = max((span.end_ns for span in spans if span.name == "warm up" and span.device == last), default=0)
    return {
        "returned": seconds(returned),
        "answers": {device: seconds(answered[device]) for device in devices},
        "ready": {device: seconds(created[device].end_ns) for device in devices},
        "one": (max(warm, created[last].end_ns) - created[last].start_ns) / 1e9 + stats[last].run.max,
        "runs": {device: stats[device].run.max for device in devices},
        "contexts": seconds(contexts[last]) if contexts else None,
        "outputs": {device: np.asarray(output, np.float64).ravel()[:64].tolist() for device, output in outputs.items()},
        "timeline": pool.timeline.table().splitlines(),
    }


def summarize(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, in seconds, and by how much outputs differ between devices.

    "behind": how much later than the last context (on the CPU: than the call) and one device, of the same process, the
    last answer comes; "behind_alone": the same with one device of a process of its own; "ahead": how much earlier than
    the last context the first answer comes, None on the CPU.
    """
    values = [
        {
            "first": min(each["all"]["answers"].values()),
            "last": max(each["all"]["answers"].values()),
            "contexts": each["all"]["contexts"],
            "one": each["all"]["one"],
            "one_alone": each["one"]["one"],
        }
        for each in rounds
    ]
    on_gpus = all(value["contexts"] is not None for value in values)
    medians = {
        name: statistics.median(value[name] for value in values)
        for name in ("first", "last", "one", "one_alone", *(("contexts",) if on_gpus else ()))
    }
    differences = []
    for each in rounds:
        first, *others = each["all"]["outputs"].values()
        differences += [float(np.max(np.abs(np.subtract(first, other)))) for other in others]
    return {
        **medians,
        "behind": statistics.median(value["last"] - (value["contexts"] or 0.0) - value["one"] for value in values),
        "behind_alone": statistics.median(
            value["last"] - (value["contexts"] or 0.0) - value["one_alone"] for value in values
        ),
        "ahead": statistics.median(value["contexts"] - value["first"] for value in values) if on_gpus else None,
        "largest_difference": max(differences, default=0.0),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an .onnx file")
    parser.add_argument("--devices", default="all", help="all (the default), or a list such as 0,1")
    parser.add_argument("--strategy", default="shared", choices=["shared", "native"])
    parser.add_argument("--wait", default="none", choices=["none", "first"], help="of `load` (default: none)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--timeout", type=float, default=600, help="of a process, in seconds")
    parser.add_argument("--most-behind", type=float, default=MOST_SECONDS_BEHIND, help="seconds")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"of outputs (default: {TOLERANCE})")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    devices = list(dict.fromkeys(parse_devices(args.devices)))
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as cache:

        def run(on: list[str]) -> dict[str, Any]:
            page_cache.warm([args.model, *page_cache.external_files(args.model)])
            spec = {"model": str(args.model), "devices": on, "strategy": args.strategy, "wait": args.wait}
            path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
            environment = {"ORTMULTI_CACHE": cache, "PYTHONPATH": path}
            return fresh_process.run("benchmarks.first_answers", spec, args.timeout, environment)

        run(devices)  # makes the model's entry in the cache
        cases = {"all": devices, "one": devices[:1]}
        rounds = measure_rounds([*cases], lambda name, _: run(cases[name]), args.repeat, order=alternating)
    summary = summarize(rounds)
    first, last, one = summary["first"], summary["last"], summary["one"]
    print(f"{len(devices)} devices: first answer after {first:.3f} s, last after {last:.3f} s", end="")
    print(f"; the last context after {summary['contexts']:.3f} s" if "contexts" in summary else "", end="")
    print(f"; one device takes {one:.3f} s; the last answer comes {summary['behind']:+.3f} s after both")
    missed = []
    if summary["largest_difference"] > args.tolerance:
        missed.append(f"outputs differ by {summary['largest_difference']:.3g} between devices")
    if len(devices) > 1 and "contexts" in summary:
        if summary["behind"] > args.most_behind:
            missed.append(f"the last answer is {summary['behind']:.3f} s late, not {args.most_behind}")
        if summary["ahead"] < 0:
            missed.append(f"the first answer comes {-summary['ahead']:.3f} s after the last context")
    if args.json:
        report = {
            "model": args.model.stem,
            "devices": devices,
            "strategy": args.strategy,
            "wait": args.wait,
            "rounds": rounds,
            "summary": summary,
            "missed": missed,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
