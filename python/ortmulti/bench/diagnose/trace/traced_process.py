"""The traced process: makes the sessions and runs them by a strategy, and writes events."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from ortmulti.bench.strategies import SessionSettings, open_strategy
from ortmulti.interface.session_observer import SessionObserver, observe

from .events import EventWriter


def make_observer(folder: str, devices: Sequence[str], number: int) -> SessionObserver:
    """Return the observer of a worker process, made there."""
    begin = time.monotonic_ns()
    from .observer import Observer

    events = EventWriter(folder)
    observer = Observer(events, devices, number)
    events.add("measurement", "watch", begin, end=time.monotonic_ns(), session=number)
    return observer


def main(spec: dict[str, Any], steps: Sequence[int]) -> None:
    """The process's main function.

    Args:
        spec: "way", "model", "devices", "settings" (fields of `SessionSettings`), "folder" (with the inputs, feeds.npz;
            events and profiles are written there), "instrumented".
        steps: the time in ns at the process's first line, and after the imports of numpy, ortmulti and this module.
    """
    events = EventWriter(spec["folder"])
    # A program with onnxruntime's sessions would not need ortmulti.
    own = "imports" if spec["way"] in ("native", "shared") else "measurement"
    names = (("imports", "import numpy"), (own, "import ortmulti"), ("measurement", "import the measurement"))
    for (cause, name), start, end in zip(names, steps, steps[1:], strict=False):
        events.add(cause, name, start, end=end)
    try:
        _measure(spec, events, steps[-1])
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

        observer = Observer(events, spec["devices"])
        observe(observer)
        if apart:
            maker = functools.partial(make_observer, spec["folder"], spec["devices"])
            strategy.make_observer = maker  # type: ignore[attr-defined]
    feeds = read_arrays(f"{spec['folder']}/feeds.npz")
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
