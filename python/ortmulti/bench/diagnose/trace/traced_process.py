"""The traced process: makes the sessions and runs them by a strategy, and writes events."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from ortmulti.bench.strategies import SessionSettings, open_strategy
from ortmulti.interface.session_observer import SessionObserver, observe

from .events import EventWriter


def make_observer(path: str, devices: Sequence[str], profiles: str, number: int) -> SessionObserver:
    """Return the observer of a worker process, made there."""
    begin = time.monotonic_ns()
    from .observer import Observer

    events = EventWriter(path)
    observer = Observer(events, devices, profiles, number)
    events.add("measurement", "watch", begin, end=time.monotonic_ns(), session=number)
    return observer


def main(spec: dict[str, Any], steps: Sequence[tuple[int, int]]) -> None:
    """The process's main function.

    Args:
        spec: "way", "model", "devices", "settings" (fields of `SessionSettings`), "feeds" (an .npz file), "events" (a
            path), "profiles" (a prefix of paths), "instrumented".
        steps: the time and the thread's CPU time in ns: at the process's first line, and after the imports of numpy,
            ortmulti and this module.
    """
    events = EventWriter(spec["events"])
    # A program with onnxruntime's sessions would not need ortmulti.
    own = "imports" if spec["way"] in ("native", "shared") else "measurement"
    names = (("imports", "import numpy"), (own, "import ortmulti"), ("measurement", "import the measurement"))
    for (cause, name), (start, start_cpu), (end, end_cpu) in zip(names, steps, steps[1:], strict=False):
        events.add(cause, name, start, end=end, cpu=(end_cpu - start_cpu) / 1e9)
    try:
        _measure(spec, events, steps[-1][0])
    except Exception as error:
        events.write("failed", time=time.monotonic_ns(), text=str(error) or type(error).__name__)


def _measure(spec: dict[str, Any], events: EventWriter, begin: int) -> None:
    from ortmulti.bench.files import read_arrays

    observer = SessionObserver()
    strategy = open_strategy(spec["way"], spec["model"], spec["devices"], SessionSettings(**spec["settings"]))
    apart = "processes" if spec["way"] == "processes" else None
    watched = spec["instrumented"]
    if watched:
        from .observer import Observer

        observer = Observer(events, spec["devices"], spec["profiles"])
        observe(observer)
        if apart:
            arguments = (spec["events"], spec["devices"], spec["profiles"])
            strategy.make_observer = functools.partial(make_observer, *arguments)  # type: ignore[attr-defined]
    feeds = read_arrays(spec["feeds"])
    events.add("measurement", "prepare", begin, end=time.monotonic_ns())
    with strategy:
        with events.span(apart or "imports", "start"):
            strategy.start()
        with events.span(apart, "create"):
            strategy.create()
        events.write("ready", time=time.monotonic_ns())
        with events.span(apart, "run"):
            strategy.first_run(feeds)
        events.write("answered", time=time.monotonic_ns())
        if watched:
            strategy.first_run(feeds)
            observer.finish()
