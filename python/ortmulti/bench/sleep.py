"""Measures how long a pool sleeps and wakes, what a sleeping pool keeps, and whether its answers stay the same.

Each round goes through the kinds of sleep in turns, beside a copy of as many bytes from pinned memory and a new session
of onnxruntime. Another experiment sleeps at random times while clients send requests.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import _core
from ortmulti._runtime import background
from ortmulti.bench.experiment import Experiment, Json
from ortmulti.bench.measure import fresh_process
from ortmulti.bench.measure.memory import process_memory
from ortmulti.bench.measure.pinned_copy import PinnedCopy
from ortmulti.bench.measure.rounds import spread
from ortmulti.bench.models import sample_inputs
from ortmulti.bench.reports.tables import IN_MIB, MIB, Cell, Column, Report, Sheet, label, number, times_text, whole
from ortmulti.bench.serve.clients import ClosedLoop
from ortmulti.bench.strategies import SessionSettings
from ortmulti.bench.strategies.onnxruntime_sessions import create_session, open_package
from ortmulti.errors import InvalidArgument
from ortmulti.optimized import comparison, wait_for_entries

KINDS: dict[str, dict[str, Any]] = {
    "files": {},
    "pinned": {"keep": "pinned"},
    **{level: {"level": level} for level in _core.sleep_levels if level != "weights"},
}
"""The kinds of sleep, by their names, with the arguments of `Pool.sleep`."""

_ON_CPU = tuple(level for level, closes in _core.sleep_levels.items() if closes)

THREADS = 4
"""Clients of the random sleeps. Each has inputs of its own."""

SETTLED = 100
"""Random sleeps before the first look at the memory."""

_WARM_RUNS = 5
_LONGEST_PAUSE = 0.02


def measure(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a model in a process of its own.

    Args:
        spec: "model" (path), "device", "graphs", "batch" and "sequence" (see `sample_inputs`), "kinds" (of `KINDS`),
            and "experiment": "turns" with "repeat", or "random" with "random", the number of sleeps.

    Returns:
        Of "turns":
            "seconds": lists of figures of each kind, of a pool that is "awake", of a "copy" from pinned memory, and of
                "onnxruntime".
            "memory": bytes on the "gpu" and the "host" by kind, beyond those from before the pool. "shared": what a
                first, closed pool has left there.
            "weights": bytes that a sleep of the weights gives back; None on the CPU.
            "different": number of differing answers by kind.
        Of "random": "slept", "woken", "answers", "different", and "memory" after `SETTLED` sleeps and at the end.
    """
    feeds = [sample_inputs(spec["model"], spec["batch"], spec["sequence"], seed) for seed in range(THREADS)]
    before = _memory(spec["device"])
    with _load(spec) as first:
        _warm(first, feeds[0])
    wait_for_entries()
    if spec["experiment"] == "random":
        return _random(spec, feeds)
    shared = _memory(spec["device"], before)
    result = _turns(spec, feeds)
    return {**result, "memory": {**result["memory"], "shared": shared}}


def _load(spec: Mapping[str, Any], **more: Any) -> ortmulti.Pool:
    return ortmulti.load(spec["model"], spec["device"], cuda_graph=spec["graphs"], **more)


def _warm(pool: ortmulti.Pool, feed: Mapping[str, Any]) -> list[Any]:
    for _ in range(_WARM_RUNS):
        pool.run(feed)
    background.wait()  # for CUDA graphs that are being made
    return pool.run(feed)


def _memory(device: str, before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the bytes in use on the GPU, if `device` is one, and those of this process in the host's memory; beyond
    those of `before`.
    """
    gc.collect()
    found = {"host": process_memory().pss}
    if device != "cpu":
        free, total = _core.cuda_memory(_core.parse_device(device)[1])
        found["gpu"] = total - free
    return {where: size - before[where] for where, size in found.items()} if before else found


def _turns(spec: Mapping[str, Any], feeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    device, feed, kinds = spec["device"], feeds[0], {name: KINDS[name] for name in spec["kinds"]}
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    different = dict.fromkeys(kinds, 0)

    def timed(row: str, figure: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = call()
        times[row][figure].append(time.perf_counter() - begin)
        return result

    def turn(kind: str, how: Mapping[str, Any]) -> None:
        pool.sleep("session")  # frees the pinned copy, too
        _warm(pool, feed)
        timed("awake", "run", lambda: pool.run(feed))
        timed(kind, "first_sleep", lambda: pool.sleep(**how))
        answers = [pool.run(feed)]
        timed(kind, "sleep", lambda: pool.sleep(**how))
        answers.append(timed(kind, "request", lambda: pool.run(feed)))
        pool.sleep(**how)
        timed(kind, "wake", pool.wake)
        answers.append(timed(kind, "run", lambda: pool.run(feed)))
        different[kind] += _differing(answers, expected)

    before = _memory(device)
    with _load(spec, in_flight=1) as pool:
        expected = _warm(pool, feed)
        memory = {"awake": _memory(device, before)}
        for kind, how in kinds.items():
            pool.sleep(**how)
            memory[kind] = _memory(device, before)
            pool.sleep("session")
            _warm(pool, feed)
        weights = max(
            (memory["awake"]["gpu"] - memory[kind]["gpu"] for kind in kinds if "level" not in KINDS[kind]), default=0
        )
        copy = PinnedCopy(_core.parse_device(device)[1]) if weights > 0 else None
        settings = SessionSettings.side_by_side([device], _core.usable_cores())
        create = partial(create_session, open_package([device]), spec["model"], device, settings)
        for _ in range(spec["repeat"]):
            for kind, how in kinds.items():
                turn(kind, how)
            if copy:
                times["copy"]["wake"].append(copy.seconds(weights))
            timed("onnxruntime", "request", lambda: timed("onnxruntime", "wake", create).run(None, dict(feed)))
    return {"weights": weights if copy else None, "seconds": times, "memory": memory, "different": different}


def _differing(answers: Sequence[list[Any]], expected: list[Any]) -> int:
    return sum(not comparison.same_bits(answer, expected) for answer in answers)


def _random(spec: Mapping[str, Any], feeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    [kind], sleeps = spec["kinds"], spec["random"]
    moments = random.Random(0)
    answers = different = 0
    with _load(spec) as pool:
        expected = [_warm(pool, feed) for feed in feeds]

        def under_load(count: int) -> dict[str, int]:
            """Sleep so many times, and return the memory of the pool awake and without load."""
            nonlocal answers, different
            wrong: list[int] = []  # a number for each client's differing answer
            asks = [
                lambda feed=feed, first=first: wrong.append(1) if _differing([pool.run(feed)], first) else None
                for feed, first in zip(feeds, expected, strict=True)
            ]
            with ClosedLoop(asks) as loop:
                for _ in range(count):
                    loop.go_on(moments.uniform(0.0, _LONGEST_PAUSE))
                    pool.sleep(**KINDS[kind])
                    for times in loop.answers:  # which would be memory that grows
                        answers += (answered := len(times))
                        del times[:answered]
            loop.go_on(0.0)  # which raises a client's error
            answers += sum(map(len, loop.answers))
            different += len(wrong)
            for feed in feeds:
                pool.run(feed)
            return _memory(spec["device"])

        settled = under_load(min(SETTLED, sleeps))
        end = under_load(max(0, sleeps - SETTLED))
        [device] = pool.stats().devices
    return {
        "slept": device.sleeps,
        "woken": device.wakes,
        "answers": answers,
        "different": different,
        "memory": {"settled": settled, "end": end},
    }


@dataclass(frozen=True)
class SleepCase:
    """One process: a model, an experiment ("turns" or "random"), and the kinds of sleep in it."""

    model: Path
    experiment: str
    kinds: tuple[str, ...]


# --- What it says -----------------------------------------------------------------------------------------------------

COLUMNS = tuple(
    Column(key, head, scale=1e-3)
    for key, head in {
        "first_sleep": "first sleep, ms",
        "sleep": "sleep, ms",
        "wake": "wake, ms",
        "request": "request that wakes, ms",
        "run": "next run, ms",
    }.items()
)

_NAMES = {
    **{kind: kind for kind in KINDS},
    "shared": "left by a closed pool",
    "awake": "awake",
    "files": "weights, from the files",
    "pinned": "weights, from a pinned copy",
    "copy": "copy from pinned memory",
    "onnxruntime": "onnxruntime's session again",
}

_NOTES = (
    "Medians, below them the ranges. wake: until the pool takes requests; of onnxruntime the creation of a session. "
    "request that wakes: the answer to a request of a sleeping pool; of onnxruntime the creation and a run. copy: as "
    "many bytes as a sleep of the weights gives back, the lower bound of a wake. GPU, host: memory beyond that from "
    "before the pool, without what all models share, such as kernels: a closed pool leaves that. growth: from 100 "
    "random sleeps to the end. equal: all answers have the bits of those "
    "before the first sleep."
)


def headline(document: Json) -> str:
    """Return one sentence for each model: how long it wakes, beside onnxruntime."""
    lines = []
    for model in document["models"]:
        rows = [row for row in document["rows"] if row["model"] == model["path"] and row["wake"]]
        wakes = {row["kind"]: f"{number(row['wake']['median'] * 1e3)} ms" for row in rows}
        again = wakes.pop("onnxruntime", None)
        of_kinds = ", ".join(f"{wakes[kind]} ({_NAMES[kind]})" for kind in KINDS if kind in wakes)
        text = f"wakes in {of_kinds}. Creating onnxruntime's session again takes {again}"
        where = f"{model['name']} on {document['settings']['device']}"
        lines.append(f"{where} {text}." if again else f"{where}: nothing was measured.")
    return "\n".join(lines)


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield the tables of each model: of the sleeps in turns, and of those at random times."""
    settings = document["settings"]
    places = {"host": "host"} if settings["device"] == "cpu" else {"gpu": "GPU", "host": "host"}
    in_use = [Column(place, f"{name}, MiB", show=_in_use(place), **IN_MIB) for place, name in places.items()]
    growth = [Column(place, f"{name} growth, MiB", show=_random_growth(place)) for place, name in places.items()]
    counts = {"slept": "sleeps", "woken": "wakes", "answers": "answers", "different": "differ"}
    for model in document["models"]:
        measured = [one for one in document["measurements"] if one["model"] == model["path"] and "error" not in one]
        for turns in (one for one in measured if one["experiment"] == "turns"):
            weights = [f"weights {whole(turns['weights'] / MIB)} MiB"] if turns["weights"] else []
            graphs = ["CUDA graphs"] if settings["graphs"] else []
            parts = [model["name"], settings["device"], *weights, *graphs, times_text(settings["repeat"], "round")]
            rows = [row for row in document["rows"] if row["model"] == model["path"]]
            columns = (*COLUMNS, *in_use, Column("equal", "equal"))
            yield Sheet(", ".join(parts), [label("sleep", lambda row: _NAMES[row["kind"]])], columns, rows)
        if randoms := [one for one in measured if one["experiment"] == "random"]:
            yield Sheet(
                f"{model['name']}, sleeps at random times, {THREADS} threads",
                [label("sleep", lambda one: _NAMES[one["kinds"][0]])],
                [*(Column(key, head) for key, head in counts.items()), *growth],
                randoms,
                lambda one: bool(one["different"]),
            )


def _in_use(place: str) -> Callable[[Json], int | None]:
    return lambda row: row["memory"] and row["memory"][place]


def _random_growth(place: str) -> Callable[[Json], Cell]:
    return lambda one: (f"{(one['memory']['end'][place] - one['memory']['settled'][place]) / MIB:.1f}", "")


REPORT = Report(headline, sheets, lambda _document, _details: _NOTES)


@dataclass
class Sleep(Experiment[SleepCase]):
    """How models sleep and wake on a device, each in a process of its own.

    Attributes: the options of `ortmulti bench sleep`. `repeat` are turns within a process. Further ones:
        device: "cpu" or "cuda:<index>".
        kinds: which of `KINDS`; None: all that the device has. The CPU has only levels that close sessions.
    """

    kind, report, rounds = "sleep", REPORT, 1

    models: Sequence[Path]
    device: str
    kinds: Sequence[str] | None = None
    graphs: bool = False
    repeat: int = 10
    random: int = 0
    batch: int = 1
    sequence: int = 16
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured: `InvalidArgument`, or `NoSuchFile` for a file that does not exist."""
        on_cpu = self.device == "cpu"
        self.kinds = tuple(dict.fromkeys(self.kinds if self.kinds is not None else _ON_CPU if on_cpu else KINDS))
        if unknown := [kind for kind in self.kinds if kind not in KINDS]:
            raise InvalidArgument(f"unknown kind of sleep {unknown[0]!r}: it is one of {', '.join(KINDS)}")
        if on_cpu and (self.graphs or not set(self.kinds) <= set(_ON_CPU)):
            what = "--graphs is" if self.graphs else f"the kinds {', '.join(self.kinds)} are"
            raise InvalidArgument(
                f"{what} not for the CPU, which sleeps at level {' or '.join(map(repr, _ON_CPU))} alone: name a GPU, "
                "or leave it out"
            )
        self.check_at_least(repeat=1, random=0, batch=1)

    def cases(self, number: int = 0) -> list[SleepCase]:  # noqa: ARG002
        kinds = tuple(self.kinds or ())
        at_random = [("random", (kind,)) for kind in kinds] if self.random else []
        return [SleepCase(model, *case) for model in self.models for case in (("turns", kinds), *at_random)]

    def describe(self, case: SleepCase) -> dict[str, Any]:
        return {**self.settings(), **super().describe(case)}

    @classmethod
    def where(cls, measurement: Mapping[str, Any]) -> str:
        how = " at random times" if measurement["experiment"] == "random" else ""
        kinds = ", ".join(measurement["kinds"])
        return f"{Path(measurement['model']).stem} on {measurement['device']}, {kinds}{how}"

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        """Return the error, or how many answers differ."""
        different = measurement.get("different", 0)
        wrong = sum(different.values()) if isinstance(different, dict) else different
        texts = [f"{wrong} answers differ from those before the first sleep"] if wrong else []
        return super().complaints(measurement) + texts

    def measure(self, case: SleepCase, number: int) -> dict[str, Any]:  # noqa: ARG002
        with tempfile.TemporaryDirectory(prefix="ortmulti-") as cache:
            return fresh_process.run(__name__, self.describe(case), self.timeout, {"ORTMULTI_CACHE": cache})

    def rows(self, rounds: Sequence[Mapping[SleepCase, Json]]) -> list[dict[str, Any]]:
        """Return a row for each model and kind, and for what those are compared with; seconds as spreads."""
        return [
            {
                "model": str(case.model),
                "kind": kind,
                "memory": result["memory"].get(kind),
                "equal": result["different"][kind] == 0 if kind in case.kinds else None,
                **{name: spread(seconds.get(name, ())) for name in (column.key for column in COLUMNS)},
            }
            for found in rounds
            for case, result in found.items()
            if case.experiment == "turns" and "error" not in result
            for kind in ("shared", "awake", *case.kinds, "copy", "onnxruntime")
            if (seconds := result["seconds"].get(kind, {})) or kind in result["memory"]
        ]
