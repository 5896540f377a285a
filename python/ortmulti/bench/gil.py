"""Measures how long other Python threads stand still during the creation of a session.

A heartbeat thread sleeps for a millisecond, again and again, beside the creation. A beat that is late by more than the
interpreter's switch interval has waited for the GIL (or for a core). Its whole delay counts.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti._runtime.libraries import find_onnxruntime
from ortmulti.bench.experiment import Experiment, Json
from ortmulti.bench.measure import fresh_process, page_cache
from ortmulti.bench.measure.rounds import alternating
from ortmulti.bench.reports.tables import Column, Report, Sheet, label, model_text, times_text
from ortmulti.bench.strategies import SessionSettings, open_strategy
from ortmulti.bench.strategies.onnxruntime_sessions import create_session, open_package
from ortmulti.errors import Error

LIBRARIES = ("onnxruntime", "ortmulti")

BEAT_SECONDS = 0.001


def delays(beats: Sequence[float], begin: float, end: float, tolerance: float) -> list[float]:
    """Return the seconds by which beats were late, without those up to `tolerance`.

    Args:
        beats: times of the heartbeats, ascending, in seconds; from before `begin` until after `end`.
        begin: when the creation began.
        end: when it ended. Delays outside the creation do not count.
        tolerance: largest delay of a beat that counts as on time, seconds.
    """
    late = (min(beat, end) - max(previous + BEAT_SECONDS, begin) for previous, beat in itertools.pairwise(beats))
    return [seconds for seconds in late if seconds > tolerance]


def beside(work: Callable[[], object]) -> tuple[float, list[float], float]:
    """Call `work` in this thread with the heartbeat beside it.

    Returns:
        The seconds that `work` took; the delays that are longer than the interpreter's switch interval; and for how
        long the heartbeat thread was ready, but no core was free: 0 if the kernel does not say.
    """
    beats: list[float] = []
    running, stop = threading.Event(), threading.Event()

    def beat() -> None:
        while not stop.is_set():
            beats.append(time.perf_counter())
            running.set()
            time.sleep(BEAT_SECONDS)
        beats.append(time.perf_counter())

    def waited_for_core() -> float:
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[1]) / 1e9
        return 0.0

    thread = threading.Thread(target=beat, name="heartbeat")
    thread.start()
    try:
        running.wait()
        waited = waited_for_core()
        begin = time.perf_counter()
        work()
        end = time.perf_counter()
        waited = waited_for_core() - waited
    finally:
        stop.set()
        thread.join()
    return end - begin, delays(beats, begin, end, sys.getswitchinterval()), waited


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure once, in a process of its own.

    Args:
        spec: "library" (one of `LIBRARIES`), "model" (path), "device" and "threads" (see `SessionSettings`); perhaps
            "settings", further fields of `SessionSettings`.

    Returns:
        "release" of ONNX Runtime; "creation", "delay" and "largest" in seconds, and the shares of the latter two in the
        creation. "for_core": seconds in which the heartbeat waited for a core; most of them are also part of the delay.
    """
    settings = SessionSettings(**{**spec.get("settings", {}), "intra_op_num_threads": spec["threads"]})
    if spec["library"] == "onnxruntime":
        package = open_package([spec["device"]])
        create, release = partial(create_session, package, spec["model"], spec["device"], settings), package.__version__
    else:
        native = open_strategy("native", spec["model"], [spec["device"]], settings)
        native.start()
        ortmulti.RunOptions()  # opens ONNX Runtime, as the import of onnxruntime above
        create, release = native.create, find_onnxruntime().version  # type: ignore[assignment]
    created: list[Any] = []
    creation, late, for_core = beside(lambda: created.append(create()))
    figures = {"delay": sum(late), "largest": max(late, default=0.0)}
    shares = {f"{name}_share": seconds / creation for name, seconds in figures.items()}
    return {"release": release, "creation": creation, **figures, **shares, "for_core": for_core}


# --- What it says -----------------------------------------------------------------------------------------------------

_NOTES = (
    "Medians, below them the ranges. delay: how long a Python thread beside the creation stood still in all; largest: "
    "at once, in percent of the creation."
)


def _percent(value: float) -> str:
    return f"{value:.1f}%"


COLUMNS = (
    Column("creation", "creation, s"),
    Column("delay", "delay, s"),
    Column("largest"),
    Column("delay_share", "delay / creation", scale=0.01, text=_percent),
    Column("largest_share", "largest / creation", scale=0.01, text=_percent),
)


def headline(document: Json) -> str:
    """Return one sentence: for which part of a creation other threads stand still."""
    shares = [
        f"{_percent(100 * row['delay_share']['median'])} of a creation by {row['library']}"
        for row in document["rows"]
        if row["delay_share"]
    ]
    text = f"other Python threads stand still for {' and '.join(shares)}" if shares else "nothing was measured"
    return f"{document['models'][0]['name']} on {document['settings']['device']}: {text}."


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield the table."""
    how = f"{document['settings']['page_cache']} page cache, {times_text(document['settings']['repeat'], 'repetition')}"
    title = f"{model_text(document['models'][0])}, {how}"
    yield Sheet(title, [label("library"), label("release")], COLUMNS, document["rows"])


REPORT = Report(headline, sheets, lambda _document, _details: _NOTES)


@dataclass
class Gil(Experiment[str]):
    """The delay for each library, in turns and in fresh processes, with the model in the page cache.

    Attributes: the options of `ortmulti bench gil`; `models` is one .onnx file.
    """

    kind, report, columns = "gil", REPORT, COLUMNS

    models: Sequence[Path]
    device: str = "cpu"
    threads: int = 0
    repeat: int = 5
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured: `InvalidArgument`, or `NoSuchFile` for a file that does not exist."""
        self.check_at_least(repeat=1)

    def cases(self, number: int = 0) -> list[str]:
        return alternating(LIBRARIES, number)

    def describe(self, case: str) -> dict[str, Any]:
        return {"library": case, "model": str(self.models[0]), "device": self.device, "threads": self.threads}

    @classmethod
    def where(cls, measurement: Json) -> str:
        return str(measurement["library"])

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:  # noqa: ARG002
        for library in LIBRARIES:  # loads the libraries from the disk, and does not count
            step(library)
            with contextlib.suppress(Error):
                self.measure(library, -1)

    def measure(self, case: str, number: int) -> dict[str, Any]:  # noqa: ARG002
        [model] = self.models
        page_cache.warm((model, *page_cache.external_files(model)))
        return fresh_process.run(__name__, self.describe(case), self.timeout)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "page_cache": "warm", "intra_op_num_threads": self.threads}

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Mapping[str, Json]]) -> dict[str, Any]:  # noqa: ARG002
        return {"release": good[0]["release"] if good else None}
