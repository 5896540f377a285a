"""How long after the program's call does each device answer, where the requests are there before the sessions?

In fresh processes, with the model's files in the page cache and its optimized form in a cache of this script's own:
`load` with `Loading(wait="none")` on all --devices, and at once a request for each of them. From the same process: when
`load` came back, when each device answered for the first time, when the last GPU's context was there, and when each
session was.
"one" is the creation of a session and its first run: of the device whose context was the last, in the same process; the
case "one" has the first device alone in a process of its own. "behind" is how much later than the last context (on the
CPU: than the call) and one device the last answer comes, "ahead" how much earlier than the last context the first one.

    python -m benchmarks.first_answers phi3-mini --devices all --repeat 5 --json first.json

With `--wait first` the load has `wait="first"` and `warmup=True`, which makes the other contexts when one device is
warm; the requests come when it has returned, and "one" contains the warm-up.

Exit status 1 if an answer is wrong, if in the median the last answer comes more than --most-behind seconds late, or if
the first one comes after the last context; with one device, or on the CPU, only answers count. Answers are wrong if
they differ between devices by more than --tolerance.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ortmulti
from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure import page_cache
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.rounds import alternating
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, highest, option
from ortmulti.optimized import wait_for_entries


def last(one: Json) -> float:
    return float(max(one["answers"].values()))


def behind(one: Json) -> float:
    return last(one) - (one["contexts"] or 0.0) - float(one["one"])


def ahead(one: Json) -> float | None:
    return None if one["contexts"] is None else float(one["contexts"] - min(one["answers"].values()))


def largest_difference(one: Json) -> float:
    first, *others = one["outputs"].values()
    return max((float(np.max(np.abs(np.subtract(first, other)))) for other in others), default=0.0)


@dataclass
class FirstAnswers(Script[str]):
    """The options of the command line."""

    kind, columns = "first answers", (
        Column("first", "first answer, s", lambda one: min(one["answers"].values())),
        Column("last", "last answer, s", last),
        Column("contexts", "last context, s", rare=True),
        Column("one", "one device, s"),
        Column("behind", "behind, s", behind),
        Column("ahead", "ahead, s", ahead, rare=True),
        Column("largest_difference", "difference", largest_difference, highest, text="{:.2g}".format),
    )  # fmt: skip
    models: Sequence[Path] = option((), "a name of `ortmulti models`, or an .onnx file")
    devices: tuple[str, ...] = option(("all",), "all, or a list such as 0,1", parse_devices)
    strategy: str = option("shared", "shared or native")
    wait: str = option("none", "none or first, of `load`")
    repeat: int = option(5, "rounds")
    most_behind: float = option(0.1, "seconds")
    tolerance: float = option(1e-2, "of outputs")

    def __post_init__(self) -> None:
        if self.devices == ("all",):
            self.devices = parse_devices("all")
        self.devices = tuple(dict.fromkeys(self.devices))

    def cases(self, number: int = 0) -> Sequence[str]:
        return alternating(["all", "one"], number)

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._cache = folder
        self.measure("all", -1)  # makes the model's entry in the cache

    def measure(self, case: str, number: int) -> dict[str, Any]:
        [model] = self.models
        page_cache.warm([model, *page_cache.external_files(model)])
        devices = list(self.devices if case == "all" else self.devices[:1])
        spec = {"model": str(model), "devices": devices, "strategy": self.strategy, "wait": self.wait}
        return self.fresh(spec, {"ORTMULTI_CACHE": str(self._cache)})

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        found, limits, row = super().failures(document), document["settings"], document["rows"][0]
        if row["largest_difference"] is not None and row["largest_difference"] > limits["tolerance"]:
            found.append(f"outputs differ by {row['largest_difference']:.3g} between devices")
        if len(limits["devices"]) > 1 and row["ahead"]:
            if row["behind"]["median"] > limits["most_behind"]:
                found.append(f"the last answer is {row['behind']['median']:.3f} s late, not {limits['most_behind']}")
            if row["ahead"]["median"] < 0:
                found.append(f"the first answer comes {-row['ahead']['median']:.3f} s after the last context")
        return found


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Load once, in this process; all times in seconds from the call.

    Returns:
        "returned": when `load` came back; for each device "answers", "ready" (its session's creation had ended) and
        "runs" (how long the first run took); "contexts", the last one's end, None on the CPU; "one", creation and
        first run of that one's device; "outputs", of each device a few of the values.
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
    pool = ortmulti.load(
        spec["model"], devices, loading=ortmulti.Loading(wait=spec["wait"], strategy=spec["strategy"]), warmup=warmup
    )
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
    }


if __name__ == "__main__":
    sys.exit(script.main(FirstAnswers))
