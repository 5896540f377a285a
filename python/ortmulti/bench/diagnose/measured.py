"""Figures of a document's runs: medians over repetitions, what each way serializes on, and the best way."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.floor import cuda_devices
from ortmulti.bench.measure.rounds import Interval

Run = Mapping[str, Any]

# Below this share of a creation nothing is said: a loaded machine alone makes as much.
LEAST_SHARE = 0.05
# Ways that differ by less are called equal, whatever the intervals say.
_EQUAL = 0.03
# The work of a process before it creates sessions, in every way.
_BEFORE = ("interpreter", "imports", "measurement")


class Measured:
    """The runs of a diagnosis."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        settings, model = document["settings"], document["models"][0]
        self.devices: tuple[str, ...] = tuple(settings["devices"])  # of all sessions
        self.gpus = tuple(cuda_devices(self.devices))  # each once
        self.sessions = len(self.devices)
        self.on = describe(self.devices)
        self.model = str(model.get("given") or model["path"])  # as the user gave it if known
        self.external: list[str] = list(model["external"])  # the files of its weights, seen from its folder
        self.model_bytes = int(model["bytes"] + model["external_bytes"])
        self.release = f"onnxruntime {document['releases'].get('onnxruntime') or '(unknown release)'}"
        self._good = [run for run in document["runs"] if not run.get("error")]
        self.ways = [way for way in settings["ways"] if self.starts(way)]  # that created all sessions
        self.usual = next(iter(self.ways), "")  # the way that findings are about
        self.best = min(self.ways, key=lambda way: self.creation(way) or 0.0, default="")
        self.before = self.creation(self.usual) or 1e-9  # seconds of the usual way's creation

    def runs(self, experiment: str, **fields: Any) -> list[Run]:
        """Return the runs of an experiment that did not fail and have these fields."""
        wanted = {"experiment": experiment, **fields}
        return [run for run in self._good if all(run.get(name) == value for name, value in wanted.items())]

    def experiment(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Return what the runs of an experiment have measured."""
        return [run["measured"] for run in self.runs(name, **fields)]

    def traces(self, way: str, sessions: int | None = None, cache: str = "warm", of: str = "trace") -> list[Run]:
        """Return the traces of a way with this many sessions, all by default; `of` names other experiments' starts."""
        count = sessions or self.sessions
        return [run for run in self.runs(of, way=way, cache=cache) if len(run["devices"]) == count and "ready" in run]

    def starts(self, way: str) -> list[Run]:
        """Return the starts of a way on all devices by which ways are compared.

        They were not recorded, which would slow them. Without such starts these are the traces.
        """
        verified = [run for run in self.traces(way, of="verify") if run.get("changed") is False]
        return [*self.traces(way, of="plain"), *verified] or self.traces(way)

    def creation_interval(self, way: str) -> Interval | None:
        """Return the median seconds of a creation on all devices with its confidence interval, see `starts`."""
        return Interval.of(map(creation_of, self.starts(way)))

    def creation(self, way: str) -> float | None:
        """Return the median of `creation_interval`."""
        return median(map(creation_of, self.starts(way)))

    def watched_creation(self, way: str, sessions: int | None = None, cache: str = "warm") -> float | None:
        """Median seconds of a creation of which there is a trace; for comparing these with each other."""
        return median(map(creation_of, self.traces(way, sessions, cache)))

    def wall(self, way: str) -> float | None:
        """Median seconds from a process's start until its last first answer, on all devices."""
        return median(run["wall"] for run in self.starts(way))

    def cause(self, way: str, *names: str) -> float:
        """Median seconds of a way's start on all devices that have one of these causes.

        Recording takes time, so they are scaled to an unwatched start. 0 if nothing was measured.
        """
        spent = median(sum(run["causes"].get(name, 0.0) for name in names) for run in self.traces(way))
        return (spent or 0.0) * self.scale(way)

    def scale(self, way: str) -> float:
        """Return an unwatched creation over a watched one; at most 1."""
        watched, unwatched = self.watched_creation(way), self.creation(way)
        return min(unwatched / watched, 1.0) if watched and unwatched else 1.0

    def typical(self, way: str) -> Run | None:
        """Return the trace on all devices whose wall is the median one, the lower of two."""
        runs = sorted(self.traces(way), key=lambda run: float(run["wall"]))
        return runs[(len(runs) - 1) // 2] if runs else None

    def speedup(self, way: str) -> float | None:
        """Return the sequential way's creation time divided by this one's, on all devices."""
        sequential, own = self.creation("sequential"), self.creation(way)
        return sequential / own if sequential and own else None

    def gil_share(self, way: str) -> float | None:
        """Return the share of a creation in which no other Python thread could run, by this way's library.

        Time in which the heartbeat waited for a core does not count.
        """
        library = "ortmulti" if way in ("native", "shared") else "onnxruntime"
        return median(
            min(max(found["delay"] - found["for_core"], 0.0) / found["creation"], 1.0)
            for found in self.experiment("gil", library=library)
        )

    def driver(self) -> dict[str, float]:
        """Return median seconds of the driver's start with nothing else running; empty without GPUs.

        Returns:
            "floor": cuInit and the contexts one by one; "one by one": these contexts alone; "at once": the contexts at
            once, where there are several.
        """
        one_by_one, at_once = (self.experiment("contexts", at_once=value) for value in (False, True))
        figures = {
            "floor": [one["driver_floor"] for one in one_by_one],
            "one by one": [sum(one["contexts"]) for one in one_by_one],
            "at once": [one["at_once"] for one in at_once],
        }
        return {name: statistics.median(values) for name, values in figures.items() if values}

    def reading_rate(self, cache: str) -> float | None:
        """Return the bytes a second at which `cat` reads the model's files from a "cold" or "warm" page cache."""
        found = self.experiment("disk", cache=cache)
        return median(one["bytes"] / one["seconds"] for one in found if one["seconds"] > 0)


def creation_of(run: Run) -> float:
    """Return the seconds of a creation, from the moment when the process could begin.

    The start of worker processes counts. For ortmulti's sessions its import counts, too.
    """
    before: float = sum(run["causes"].get(cause, 0.0) for cause in _BEFORE)
    ready: float = run["ready"]
    own = (span for span in run["spans"] if span["cause"] == "imports" and span["name"].startswith("import ortmulti"))
    return max(ready - before + math.fsum(span["end"] - span["start"] for span in own), 0.0)


def visible_devices(gpus: Iterable[str]) -> str:
    """Return the CUDA_VISIBLE_DEVICES with which a process sees only these GPUs."""
    current = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [] if current is None else [name.strip() for name in current.split(",")]
    indices = [int(gpu.removeprefix("cuda:")) for gpu in gpus]
    return ",".join(names[index] if index < len(names) else str(index) for index in indices)


def median(values: Iterable[float]) -> float | None:
    """Return the median; None of nothing."""
    found = list(values)
    return statistics.median(found) if found else None


def seconds_text(value: float) -> str:
    """Return a duration with three significant digits and its unit."""
    if value >= 99.95:
        return f"{value:.0f} s"
    if value >= 0.9995:
        return f"{value:.3g} s" if value >= 9.995 else f"{value:.2f} s"
    if value >= 0.0995:
        return f"{value * 1e3:.0f} ms"
    return f"{value * 1e3:.1f} ms" if value >= 0.00005 else "0"


# --- What each way serializes on, and the best way --------------------------------------------------------------------


def serialization(measured: Measured) -> list[dict[str, Any]]:
    """Return what each way serializes on, on N > 1 devices.

    Returns:
        For each way "way", "devices" (N), "ideal" (N), and "speedup" over sequential (None if not measured). "on" lists
        the causes: "what", "share" (of the creation) and "evidence".
    """
    if measured.sessions < 2:
        return []
    return [
        {
            "way": way,
            "devices": measured.sessions,
            "speedup": measured.speedup(way),
            "ideal": float(measured.sessions),
            "on": [
                {"what": what, "share": min(share, 1.0), "evidence": evidence}
                for what, share, evidence in _shares(measured, way)
                if share >= LEAST_SHARE
            ],
        }
        for way in measured.ways
    ]


def _shares(measured: Measured, way: str) -> Iterator[tuple[str, float, str]]:
    """Yield each cause that holds up a way's creation, its share of the creation, and the sources of this figure."""
    sessions, creation = measured.sessions, measured.creation(way)
    if not creation:
        return
    if way == "sequential":
        yield "its own order", 1 - 1 / sessions, "one session after the other, and nothing else waits meanwhile"
    held = measured.gil_share(way)
    if way in ("threads", "native", "shared") and held is not None:  # others: one thread, or a GIL for each process
        holder = measured.release if way == "threads" else "ortmulti"
        yield "gil", held, f"{holder} holds the GIL for {held:.0%} of a session's creation (heartbeat)"
    if driver := measured.driver():
        seconds = measured.cause(way, "cuInit", "context") or driver["floor"]
        evidence = f"cuInit and the contexts take {seconds_text(driver['floor'])} with nothing else running"
        if "at once" in driver:
            evidence += f"; the contexts one by one {seconds_text(driver['one by one'])}"
            evidence += f", all at once {seconds_text(driver['at once'])}"
        yield "driver", seconds / creation, evidence
    warm, cold = measured.watched_creation(way, 1), measured.watched_creation(way, 1, "cold")
    if warm and cold:  # measured with the first way alone
        evidence = f"{seconds_text(cold)} from a cold page cache and {seconds_text(warm)} from a warm one"
        yield "disk", (cold - warm) / cold, f"one session takes {evidence}"
    if way != "sequential":
        waits = measured.cause(way, "wait for another session")
        evidence = f"its sessions' threads wait {seconds_text(waits)} for each other"
        alone, together = measured.watched_creation("native", 1), measured.watched_creation("native")
        if alone and together:
            evidence += f"; native creates {sessions} sessions in {together / alone:.1f} times the time of one"
        yield "onnxruntime", waits / creation, evidence


def prediction(measured: Measured) -> dict[str, Any] | None:
    """Predict which way has all sessions created first.

    Returns:
        "best"; "seconds" by way until all sessions are created, with the start of worker processes; "equal", the ways
        that may be as fast; "why". None if nothing was measured on all devices.
    """
    intervals = {way: interval for way in measured.ways if (interval := measured.creation_interval(way))}
    if not intervals:
        return None
    best = measured.best
    least = intervals[best].median
    equal = [
        way
        for way, interval in intervals.items()
        if way != best and (interval.median <= least * (1 + _EQUAL) or interval.low <= least)
    ]
    text = f"{seconds_text(least)} to create the sessions on {measured.on}"
    seconds = {way: interval.median for way, interval in intervals.items()}
    for way in sorted(seconds.keys() - {best}, key=lambda way: seconds[way])[:1]:
        text += f", with {way}, the next, {seconds_text(seconds[way])}"
    if equal:
        text += f"; {' and '.join(equal)} may be as fast, by the spread of the measurements"
    return {"best": best, "seconds": seconds, "equal": equal, "why": text}
