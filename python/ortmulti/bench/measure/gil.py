"""Measures how long other Python threads stand still during the creation of a session.

A heartbeat thread sleeps for a millisecond, again and again, beside the creation. A beat that is late by more than the
interpreter's switch interval has waited for the GIL (or for a core). Its whole delay counts.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ortmulti.bench.strategies import SessionSettings
from ortmulti.errors import InvalidArgument, NoSuchFile

from . import fresh_process, page_cache, results
from .rounds import RoundsInterrupted, Spread, alternating, failure, measure_rounds

LIBRARIES = ("onnxruntime", "ortmulti")

BEAT_SECONDS = 0.001


@dataclass(frozen=True)
class Delay:
    """The delays of the beats within a time, in seconds.

    Attributes:
        total: the sum.
        largest: the largest delay.
        for_core: time in which the heartbeat thread was ready, but no core was free; 0 if the kernel does not say.
    """

    total: float
    largest: float
    for_core: float = 0.0


def delay(beats: Sequence[float], begin: float, end: float, tolerance: float) -> Delay:
    """Compute the delays of the beats.

    Args:
        beats: times of the heartbeats, ascending, in seconds; from before `begin` until after `end`.
        begin: when the creation began.
        end: when it ended. Delays outside the creation do not count.
        tolerance: largest delay of a beat that counts as on time, seconds.
    """
    total = largest = 0.0
    for previous, beat in itertools.pairwise(beats):
        late = min(beat, end) - max(previous + BEAT_SECONDS, begin)
        if late > tolerance:
            total += late
            largest = max(largest, late)
    return Delay(total, largest)


def beside(work: Callable[[], object], tolerance: float | None = None) -> tuple[float, Delay]:
    """Call `work` in this thread with the heartbeat beside it.

    Args:
        work: the function to call.
        tolerance: see `delay`; the interpreter's switch interval if None.

    Returns:
        The seconds that `work` took, and the delay of the heartbeat.
    """
    beats: list[float] = []
    running, stop = threading.Event(), threading.Event()

    def beat() -> None:
        while not stop.is_set():
            beats.append(time.perf_counter())
            running.set()
            time.sleep(BEAT_SECONDS)
        beats.append(time.perf_counter())

    thread = threading.Thread(target=beat, name="heartbeat")
    thread.start()
    try:
        running.wait()
        waited = _waited_for_core(thread)
        begin = time.perf_counter()
        work()
        end = time.perf_counter()
        waited = _waited_for_core(thread) - waited
    finally:
        stop.set()
        thread.join()
    late = delay(beats, begin, end, sys.getswitchinterval() if tolerance is None else tolerance)
    return end - begin, dataclasses.replace(late, for_core=waited)


def _waited_for_core(thread: threading.Thread) -> float:
    try:
        fields = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()
    except OSError:
        return 0.0
    return int(fields[1]) / 1e9


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure once, in a process of its own.

    Args:
        spec: "library" (one of `LIBRARIES`), "model" (path), "device" and "threads" (see `SessionSettings`); perhaps
            "settings", further fields of `SessionSettings`.

    Returns:
        "creation", "delay" and "largest" in seconds, and the shares of the latter two in the creation. "for_core":
        seconds in which the heartbeat waited for a core; most of them are also part of the delay.
    """
    settings = SessionSettings(**{**spec.get("settings", {}), "intra_op_num_threads": spec["threads"]})
    create, release = _creator(spec["library"], Path(spec["model"]), spec["device"], settings)
    created: list[Any] = []
    creation, lateness = beside(lambda: created.append(create()))
    return {
        "release": release,
        "creation": creation,
        "delay": lateness.total,
        "largest": lateness.largest,
        "delay_share": lateness.total / creation,
        "largest_share": lateness.largest / creation,
        "for_core": lateness.for_core,
    }


def _creator(library: str, model: Path, device: str, settings: SessionSettings) -> tuple[Callable[[], Any], str]:
    """Return the creation to measure, and the release of ONNX Runtime under it."""
    if library == "onnxruntime":
        from ortmulti.interface.onnxruntime_sessions import create_session, open_package

        spec = settings.spec(model, device)
        onnxruntime = open_package([spec.device])
        return lambda: create_session(onnxruntime, spec), onnxruntime.__version__
    import ortmulti
    from ortmulti._runtime.libraries import find_onnxruntime
    from ortmulti.bench.strategies.core import Native

    native = Native(model, [device], settings)
    native.start()
    ortmulti.RunOptions()  # opens ONNX Runtime, as the import of onnxruntime above

    def create() -> Native:
        native.create()
        return native

    return create, find_onnxruntime().version


def bench(
    model: Path,
    *,
    libraries: Sequence[str] = LIBRARIES,
    device: str = "cpu",
    threads: int = 0,
    repeat: int = 5,
    timeout: float = 600.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Measure the delay for each library, in turns and in fresh processes, with the model in the page cache.

    Args:
        model: the .onnx file.
        libraries: which of `LIBRARIES`.
        device: "cpu" or "cuda:<index>".
        threads: the session's CPU threads; 0 is ONNX Runtime's default.
        repeat: measurements of each.
        timeout: seconds that one may take.
        progress: called with the measurements done, their number, and the library that comes next.

    Returns:
        A result of kind "gil", see `ortmulti.bench.measure.results`.

    Raises:
        NoSuchFile: the model does not exist.
        InvalidArgument: nothing to measure, or an unknown library.
    """
    unknown = set(libraries) - set(LIBRARIES)
    if unknown or not libraries or repeat < 1:
        raise InvalidArgument(
            f"measure some of {', '.join(LIBRARIES)} at least once, not {list(libraries)} {repeat} times"
        )
    if not model.is_file():
        raise NoSuchFile(f"model {model} does not exist")
    files = (model, *page_cache.external_files(model))
    tell = progress or (lambda _done, _total, _text: None)

    def once(library: str, _number: int) -> dict[str, Any]:
        page_cache.warm(files)
        spec = {"library": library, "model": str(model), "device": device, "threads": threads}
        described = {**spec, "devices": [device], "strategy": library}
        try:
            return {**described, **fresh_process.run("ortmulti.bench.measure.gil", spec, timeout)}
        except fresh_process.MeasurementError as error:
            return {**described, **failure(error)}

    for library in libraries:  # loads the libraries from the disk, and does not count
        tell(0, repeat * len(libraries), library)
        once(library, -1)
    partial: str | None = None
    try:
        rounds = measure_rounds(
            libraries,
            once,
            repeat,
            order=alternating,
            progress=lambda done, total, library: tell(done, total, library or ""),
        )
    except RoundsInterrupted as interrupt:
        rounds, partial = interrupt.rounds, "interrupted"
    measurements = [result for results in rounds for result in results.values()]
    return results.document(
        "gil",
        settings={"repeat": repeat, "page_cache": "warm", "device": device, "intra_op_num_threads": threads},
        models=[results.model_facts(model, files[1:])],
        measurements=measurements,
        rows=[_row(library, measurements) for library in libraries],
        partial=partial,
    )


def _row(library: str, measurements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    mine = [measurement for measurement in measurements if measurement["library"] == library]
    good = [measurement for measurement in mine if "error" not in measurement]
    row: dict[str, Any] = {
        "library": library,
        "release": good[0]["release"] if good else None,
        "measured": len(good),
        "errors": [measurement["error"] for measurement in mine if "error" in measurement],
    }
    for key in ("creation", "delay", "largest", "delay_share", "largest_share"):
        spread = Spread.of(measurement[key] for measurement in good)
        row[key] = asdict(spread) if spread is not None else None
    return row
