"""Figures for the rules: medians over the repetitions of the runs in a document."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ortmulti.bench.measure.rounds import Interval

Run = Mapping[str, Any]

# The work of a process before it creates sessions, in every way.
_BEFORE = ("interpreter", "imports", "measurement")


@dataclass(frozen=True)
class Measured:
    """The runs of a diagnosis.

    Attributes:
        document: its "runs", "devices", "ways", "machine", "releases" and "environment" are read.
    """

    document: Mapping[str, Any]

    @cached_property
    def good(self) -> list[Run]:
        """The runs that did not fail."""
        return [run for run in self.document["runs"] if not run.get("error")]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of all sessions."""
        return tuple(self.document["settings"]["devices"])

    @property
    def sessions(self) -> int:
        """N."""
        return len(self.devices)

    @property
    def model(self) -> str:
        """The model's path, as the user gave it if known."""
        facts = self.document["models"][0]
        return str(facts.get("given") or facts["path"])

    @property
    def external(self) -> list[str]:
        """The files of the model's weights, seen from its folder."""
        return list(self.document["models"][0]["external"])

    @property
    def model_bytes(self) -> int:
        """The size of the model with its weights."""
        facts = self.document["models"][0]
        return int(facts["bytes"] + facts["external_bytes"])

    @property
    def on_gpu(self) -> bool:
        """Whether a session is on a GPU."""
        return any(device.startswith("cuda") for device in self.devices)

    @property
    def ways(self) -> list[str]:
        """The ways that created all sessions, in the requested order."""
        return [way for way in self.document["settings"]["ways"] if self.creations(way)]

    @property
    def usual(self) -> str | None:
        """The way that findings are about: the first requested way that works."""
        return next(iter(self.ways), None)

    @property
    def release(self) -> str:
        """ONNX Runtime's release, for sentences."""
        return f"onnxruntime {self.document['releases'].get('onnxruntime') or '(unknown release)'}"

    def traces(self, way: str, sessions: int | None = None, cache: str = "warm") -> list[Run]:
        """Return the traces of a way with this many sessions, all of them by default."""
        return self._starts("trace", way, sessions, cache)

    def starts(self, way: str) -> list[Run]:
        """Return the starts of a way on all devices by which ways are compared.

        They were not recorded, which would slow them. Without such starts these are the traces.
        """
        verified = [run for run in self._starts("verify", way, None, "warm") if run.get("changed") is False]
        return [*self._starts("plain", way, None, "warm"), *verified] or self.traces(way)

    def _starts(self, experiment: str, way: str, sessions: int | None, cache: str) -> list[Run]:
        count = self.sessions if sessions is None else sessions
        return [
            run
            for run in self.good
            if (run["experiment"], run["way"], len(run["devices"]), run["cache"]) == (experiment, way, count, cache)
            and "ready" in run
        ]

    def experiment(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the measurements of an experiment's runs with these fields."""
        return [
            run["measured"]
            for run in self.good
            if run["experiment"] == name and all(run.get(key) == value for key, value in fields.items())
        ]

    def creations(self, way: str) -> list[float]:
        """Return seconds of each creation on all devices, see `starts`."""
        return [creation_of(run) for run in self.starts(way)]

    def creation(self, way: str) -> float | None:
        """Return the median of `creations`."""
        return median(self.creations(way))

    def creation_interval(self, way: str) -> Interval | None:
        """`creation` with its confidence interval."""
        return Interval.of(self.creations(way))

    def watched_creation(self, way: str, sessions: int | None = None, cache: str = "warm") -> float | None:
        """Median seconds of a creation of which there is a trace; for comparing these with each other."""
        return median(creation_of(run) for run in self.traces(way, sessions, cache))

    def wall(self, way: str) -> float | None:
        """Median seconds from a process's start until its last first answer, on all devices."""
        return median(run["wall"] for run in self.starts(way))

    def cause(self, way: str, wanted: Callable[[str], bool]) -> float:
        """Median seconds of a way's start on all devices that have one of the causes that `wanted` takes.

        Recording takes time, so they are scaled to an unwatched start. 0 if nothing was measured.
        """
        runs = self.traces(way)
        spent = median(sum(seconds for name, seconds in run["causes"].items() if wanted(name)) for run in runs) or 0.0
        return spent * self.scale(way)

    def scale(self, way: str) -> float:
        """Return an unwatched creation over a watched one; at most 1."""
        watched, unwatched = self.watched_creation(way), self.creation(way)
        return min(unwatched / watched, 1.0) if watched and unwatched else 1.0

    def typical(self, way: str) -> Run | None:
        """Return the trace on all devices whose wall is the median one, the lower of two."""
        runs = sorted(self.traces(way), key=lambda run: float(run["wall"]))
        return runs[(len(runs) - 1) // 2] if runs else None


def creation_of(run: Run) -> float:
    """Return the seconds of a creation, from the moment when the process could begin.

    The start of worker processes counts. For ortmulti's sessions its import counts, too.
    """
    before: float = sum(run["causes"].get(cause, 0.0) for cause in _BEFORE)
    needed = math.fsum(
        span["end"] - span["start"]
        for span in run["spans"]
        if span["cause"] == "imports" and span["name"].startswith("import ortmulti")
    )
    ready: float = run["ready"]
    return max(ready - before + needed, 0.0)


def start_of_workers(run: Run) -> float:
    """Return the part of a creation in which worker processes are started; 0 where there are none."""
    spans = (span for span in run["spans"] if (span["cause"], span["name"]) == ("processes", "start"))
    return math.fsum(span["end"] - span["start"] for span in spans)


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
