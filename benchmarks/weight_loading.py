"""How fast do the weights get to the GPUs, and how much memory do several sessions of one GPU take?

Loading: in one process, whose contexts are there after a first load, in turns: copying from one pinned buffer to the
first GPU, which is as fast as anything can get there; and loading the model on all GPUs from a warm page cache. From
each load's timeline come the rate of file to first GPU, and how much later the last GPU holds the weights.

Memory: in fresh processes with the context there, the GPU's free memory before the sessions are created and after each
has run once, with ortmulti's one session and four, and onnxruntime's one.

    python -m benchmarks.weight_loading phi3-mini --devices all --json loading.json

Exit status 1 if a figure misses its limit. The cache of optimized models is a temporary one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import _core
from ortmulti.bench import models, script, strategies
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure import page_cache
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.pinned_copy import PinnedCopy
from ortmulti.bench.measure.rounds import Interval, alternating
from ortmulti.bench.reports.tables import IN_MIB, Column
from ortmulti.bench.script import Script, option
from ortmulti.bench.strategies import SessionSettings

COPIED_BYTES = 8 << 30  # for one figure of the pinned buffer

# The timeline's names: of reading the weights to the first device, and of a device's copying them from another.
LOAD, COPY = "load weights", "copy weights"


def weight_bytes(model: Path) -> int:
    """Bytes of the weights that are shared."""
    return sum(weight.length for weight in _core.shareable_weights(str(model)).weights)


def loading_seconds(timeline: ortmulti.Timeline) -> dict[str, float]:
    """From the timeline of a load.

    Returns:
        Seconds: "load" (file to first device) and "behind" (from there until the last device holds the weights).
    """
    loads = [span for span in timeline.spans if span.name == LOAD]
    if not loads:
        why = "; ".join(timeline.not_shared) or "the timeline does not say why"
        raise RuntimeError(f"no weights were loaded to be shared: {why}")
    first = min(loads, key=lambda span: span.start_ns)
    ends = [span.end_ns for span in timeline.spans if span.name == LOAD or span.name.startswith(COPY)]
    return {"load": first.seconds, "behind": (max(ends) - first.end_ns) / 1e9}


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure what sessions take of a GPU's memory, in this process.

    Returns:
        "memory": less free memory after the first run of each than before the creation; "creation" in seconds.
    """
    strategy, model, device, count = (spec[key] for key in ("strategy", "model", "device", "count"))
    index = int(device.removeprefix("cuda:"))
    settings = SessionSettings(intra_op_num_threads=1)
    with strategies.open_strategy(strategy, model, [device] * count, settings) as sessions:
        sessions.start()
        sessions.make_contexts()
        before, _ = _core.cuda_memory(index)
        creation = sessions.create()
        sessions.first_run(models.sample_inputs(model))
        after, _ = _core.cuda_memory(index)
    return {"memory": before - after, "creation": creation.wall}


CEILING, LOADS = "pinned buffer", "load"
MEMORY: dict[str, tuple[str, int]] = {"one session": ("shared", 1), "four sessions": ("shared", 4),
                                      "onnxruntime's session": ("sequential", 1)}  # fmt: skip


@dataclass
class WeightLoading(Script[str]):
    """The options of the command line."""

    kind, columns = "weight loading", (
        Column("rate", "GB/s", scale=1e9, rare=True),
        Column("behind", "last GPU behind, s", rare=True),
        Column("ready", "ready, s", rare=True),
        Column("memory", "GPU, MiB", **IN_MIB, rare=True),
        Column("creation", "creation, s", rare=True),
        Column("share", "of the pinned buffer", summary=None, rare=True),
        Column("of_one", "memory of one", summary=None, rare=True),
        Column("of_onnxruntime", "of onnxruntime's", summary=None, rare=True),
        Column("further_session", "a further session, s", summary=None, rare=True),
    )  # fmt: skip
    models: Sequence[Path] = option((), "a name of `ortmulti models`, or an .onnx file")
    devices: tuple[str, ...] = option(("all",), "all, or a list such as 0,1", parse_devices)
    repeat: int = option(5, "rounds")
    least_share: float = option(0.85, "of the pinned buffer's rate")
    most_behind: float = option(0.030, "seconds")
    most_memory: float = option(1.1, "four sessions' over one's")
    most_seconds: float = option(0.1, "of each further session")

    def __post_init__(self) -> None:
        self.devices = parse_devices("all") if self.devices == ("all",) else self.devices
        if not self.devices[0].startswith("cuda:"):
            raise ortmulti.errors.InvalidArgument(f"this needs a GPU, not {self.devices[0]}: name one, such as 0")

    def cases(self, number: int = 0) -> Sequence[str]:
        return alternating([CEILING, LOADS, *MEMORY], number)

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        [model] = self.models
        self._cache = {"ORTMULTI_CACHE": str(folder)}
        os.environ.update(self._cache)
        page_cache.warm([model, *page_cache.external_files(model)])
        self.measure(LOADS, -1)  # makes the model's entry in the cache and the contexts
        self._copy = PinnedCopy(int(self.devices[0].removeprefix("cuda:")))
        self.stack.callback(self._copy.close)
        self._copy.seconds(1 << 30)

    def measure(self, case: str, number: int) -> dict[str, Any]:
        [model] = self.models
        if case == CEILING:
            return {"rate": COPIED_BYTES / self._copy.seconds(COPIED_BYTES)}
        if case in MEMORY:
            strategy, count = MEMORY[case]
            spec = {"strategy": strategy, "model": str(model), "device": self.devices[0], "count": count}
            return self.fresh(spec, self._cache)
        begin = time.monotonic_ns()
        with ortmulti.create_sessions(
            model, list(self.devices), loading=ortmulti.Loading(strategy="shared")
        ) as sessions:
            ready = (time.monotonic_ns() - begin) / 1e9
            seconds = loading_seconds(sessions.timeline)
        return {"rate": weight_bytes(model) / seconds["load"], "behind": seconds["behind"], "ready": ready}

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Mapping[str, Json]]) -> dict[str, Any]:
        four, one = "four sessions", "one session"
        pairs = [each for each in rounds if all("creation" in each.get(which, {}) for which in (four, one))]
        added = Interval.json((each[four]["creation"] - each[one]["creation"]) / 3 for each in pairs)
        return {
            "share": self.over(case, CEILING, rounds, "rate") if case == LOADS else None,
            "of_one": self.over(case, one, rounds, "memory") if case == four else None,
            "of_onnxruntime": self.over(case, "onnxruntime's session", rounds, "memory") if case == one else None,
            "further_session": added if case == four else None,
        }

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        rows, limits = {row["case"]: row for row in document["rows"]}, document["settings"]

        def median(case: str, key: str) -> float:
            return float(rows[case][key]["median"]) if rows[case][key] else float("nan")

        found = super().failures(document)
        if median(LOADS, "share") < limits["least_share"]:
            found.append(f"loading reaches {median(LOADS, 'share'):.1%} of the pinned buffer's rate")
        if median(LOADS, "behind") > limits["most_behind"]:
            found.append(f"the last GPU holds the weights {median(LOADS, 'behind'):.3f} s after the first")
        if (over := median("four sessions", "of_one")) > limits["most_memory"]:
            found.append(f"four sessions take {over:.3f} times the memory of one")
        if (over := median("one session", "of_onnxruntime")) > 1:
            found.append(f"one session takes {over:.3f} times the memory of onnxruntime's")
        if (added := median("four sessions", "further_session")) > limits["most_seconds"]:
            found.append(f"a further session adds {added:.3f} s")
        return found


if __name__ == "__main__":
    sys.exit(script.main(WeightLoading))
