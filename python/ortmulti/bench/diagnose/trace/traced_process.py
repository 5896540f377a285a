"""The traced process: makes the sessions and runs them by a strategy, watches them, and writes events."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.bench.strategies import SessionSettings, open_strategy
from ortmulti.errors import DeviceError
from ortmulti.interface.session_observer import SessionObserver, observe

if TYPE_CHECKING:
    from ortmulti.timeline import Timeline

INFO = 1  # the severity from which on ONNX Runtime's log says how far a creation has come

_FIRST_WITHOUT_GIL = (1, 31)


class EventWriter:
    """Writes into the folder of one trace; lines whole, so that several processes and threads may write."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._file = os.open(f"{folder}/events", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._numbers = itertools.count()

    def write(self, kind: str, **content: Any) -> None:
        """Append a line."""
        os.write(self._file, (json.dumps({"kind": kind, "pid": os.getpid(), **content}) + "\n").encode())

    @contextlib.contextmanager
    def span(self, cause: str | None, name: str, session: int | None = None, device: str = "") -> Iterator[None]:
        """A span of the calling thread around the body."""
        number = self.add(cause, name, time.monotonic_ns(), session=session, device=device)
        try:
            yield
        finally:
            self.write("end", number=number, end=time.monotonic_ns())

    def add(self, cause: str | None, name: str, start: int, **fields: Any) -> int:
        """Write the begin of a span of the calling thread, and its "end" if it is over, and return its number."""
        number = next(self._numbers)
        fields |= {"cause": cause, "name": name, "start": start, "thread": threading.get_native_id()}
        self.write("begin", number=number, **fields)
        return number


class Observer(SessionObserver):
    """Writes events, and makes ONNX Runtime write its steps into its log and profiles."""

    def __init__(self, events: EventWriter, devices: Sequence[str], number: int | None = None) -> None:
        """Observe sessions on `devices`; or one, by its number, if this process makes only that."""
        self._events = events
        self._lock = threading.Lock()
        self._left = list(enumerate(devices)) if number is None else [(number, devices[number])]
        self._on_gpus = all(device.startswith("cuda:") for device in devices)
        self._current = threading.local()  # the session and the device that the thread creates
        self._sessions: list[tuple[Any, int, str]] = []
        self._ran: set[int | None] = set()
        self._driver: ctypes.CDLL | None = None
        self._started: set[str] = set()

    def importing(self, name: str) -> AbstractContextManager[None]:
        return self._events.span("imports", name)

    def opening(self, name: str) -> AbstractContextManager[None]:
        return self._events.span("libraries", name)

    def opened(self, onnxruntime: Any) -> None:
        release = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
        with self._events.span("measurement", "watch onnxruntime"):
            self._events.write("onnxruntime", release=onnxruntime.__version__)
            self._watch_phases(hold_gil=release < _FIRST_WITHOUT_GIL)

    def _watch_phases(self, *, hold_gil: bool) -> None:
        """Make onnxruntime's sessions report when they read the model and when they are initialized. The time between
        the two belongs to Python, and may be a wait for the GIL.
        """
        from onnxruntime.capi import _pybind_state

        original: Any = _pybind_state.InferenceSession
        observer = self

        class Watched(original):  # type: ignore[misc]
            def __init__(self, *arguments: Any) -> None:
                with observer._span("read model", "construct"):
                    super().__init__(*arguments)

            def initialize_session(self, *arguments: Any) -> None:
                observer._start_driver(hold_gil=hold_gil)
                with observer._span("set up", "initialize"):
                    super().initialize_session(*arguments)

        _pybind_state.InferenceSession = Watched

    def _span(self, cause: str | None, name: str, device: str | None = None) -> AbstractContextManager[None]:
        """A span for the session that the thread creates."""
        number, own = self._current.session
        return self._events.span(cause, name, number, own if device is None else device)

    def _start_driver(self, *, hold_gil: bool) -> None:
        """Start what ONNX Runtime's CUDA provider would start at the same place, once in this process."""
        device = self._current.session[1]
        if not device.startswith("cuda:"):
            return
        with self._lock:  # held briefly; a second thread waits for the driver's own lock
            if device in self._started:
                return
            self._started.add(device)
            if self._driver is None:
                with self._span("libraries", "open the CUDA driver", ""):
                    self._driver = open_driver(hold_gil=hold_gil)
        with self._span("cuInit", "cuInit", ""):  # by every thread: the later ones wait in it for the first
            start_driver(self._driver)
        with self._span("context", "context"):
            make_context(self._driver, device)

    def options(self, options: Any) -> None:
        options.log_severity_level = INFO
        if self._on_gpus:  # on the CPU ortmulti's sessions are handles of one, which a profile would forbid
            options.enable_profiling = True
            options.profile_file_prefix = f"{self._events.folder}/profile-ortmulti"
        logger = logging.getLogger("ortmulti.onnxruntime")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(_MarkWriter(self._events))

    @contextlib.contextmanager
    def creating(self, options: Any, device: str) -> Iterator[None]:
        with self._lock:
            session = next(session for session in self._left if session[1] == device)
            self._left.remove(session)
        number = session[0]
        options.log_severity_level = INFO
        options.logid = f"session-{number}"
        options.enable_profiling = True
        options.profile_file_prefix = f"{self._events.folder}/profile-{number}"
        self._current.session = session
        with self._span(None, "create session"):
            yield

    def created(self, sessions: Sequence[Any], devices: Sequence[str], timeline: Timeline | None = None) -> None:
        if timeline is None:
            [session] = sessions
            self._sessions.append((session, *self._current.session))
            return
        self._sessions += [(session, *each) for session, each in zip(sessions, enumerate(devices), strict=True)]
        with self._events.span("measurement", "read the timeline"):
            for span in timeline.spans:
                self._events.write(
                    "core", name=span.name, start=span.start_ns, end=span.end_ns, thread=span.thread, device=span.device
                )

    def running(self, session: Any) -> AbstractContextManager[None]:
        numbers = ((number, device) for known, number, device in self._sessions if known is session)
        number, device = next(numbers, (None, ""))
        name = "second run" if number in self._ran else "first run"
        self._ran.add(number)
        return self._events.span("run", name, number, device)

    def finish(self) -> None:
        """End the profiles, after everything that is traced."""
        for session, number, _ in self._sessions:
            options = session.get_session_options()
            if options.enable_profiling:
                path = Path(session.end_profiling())
                # Sessions that are created in the same millisecond are given the same file. Each writes it when its
                # profile ends, from the beginning.
                kept = Path(f"{self._events.folder}/kept-{number}.json")
                kept.write_bytes(path.read_bytes())
                os.truncate(path, 0)
                self._events.write("profile", session=number, path=str(kept))
        self._sessions.clear()


class _MarkWriter(logging.Handler):
    """Passes ONNX Runtime's log records on, as events."""

    def __init__(self, events: EventWriter) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.write(
            "mark",
            time=getattr(record, "ort_time_ns", 0),
            thread=getattr(record, "ort_thread", 0),
            # There is also a line for each weight; its beginning tells the kind.
            text=getattr(record, "ort_message", record.getMessage())[:120],
        )


# The driver's start, call by call: what ONNX Runtime's CUDA provider does first, and finds done after these.


def open_driver(*, hold_gil: bool) -> ctypes.CDLL:
    """Open the CUDA driver; `hold_gil`: whether other Python threads wait during its calls.

    `DeviceError`: there is no driver; or, in the functions below, it refuses.
    """
    try:
        return (ctypes.PyDLL if hold_gil else ctypes.CDLL)("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the CUDA driver cannot be opened: {error}") from error


def start_driver(driver: ctypes.CDLL) -> None:
    """Call cuInit."""
    _check(driver.cuInit(0), "cuInit")


def make_context(driver: ctypes.CDLL, device: str) -> None:
    """Make the primary context of a device, "cuda:<index>", which is kept until the process ends."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    index = int(device.removeprefix("cuda:"))
    _check(driver.cuDeviceGet(ctypes.byref(handle), index), f"{device}: cuDeviceGet")
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"{device}: making its context")


def _check(code: int, what: str) -> None:
    if code:
        raise DeviceError(f"{what} failed with CUDA's error {code}")


# --- The process's main function --------------------------------------------------------------------------------------


def make_observer(folder: str, devices: Sequence[str], number: int) -> SessionObserver:
    """Return the observer of a worker process, made there."""
    begin = time.monotonic_ns()
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
