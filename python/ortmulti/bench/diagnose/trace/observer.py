"""Watches the strategy in the traced process: sessions, runs, and the CUDA driver's start step by step."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.bench.diagnose.trace.events import EventWriter
from ortmulti.errors import DeviceError
from ortmulti.interface.session_observer import SessionObserver

if TYPE_CHECKING:
    from ortmulti.timeline import Timeline

Span = Callable[[str, str, str], AbstractContextManager[None]]
"""Called with a cause, a name and a device: a span around what is done."""


class Driver:
    """cuInit and the devices' primary contexts, each made once in this process and kept.

    ONNX Runtime's CUDA provider would start both at the same place, and finds them ready.
    """

    def __init__(self, span: Span, hold_gil: bool) -> None:
        """
        Args:
            span: makes the spans.
            hold_gil: whether other Python threads wait meanwhile, as with releases of onnxruntime that hold the GIL
                during a creation.
        """
        self._span = span
        self._library_type = ctypes.PyDLL if hold_gil else ctypes.CDLL
        self._library: ctypes.CDLL | None = None
        self._begun = threading.Lock()
        self._contexts: set[int] = set()

    def start(self, index: int) -> None:
        """Make the context of a device, and call cuInit before the first one.

        Raises:
            DeviceError: there is no driver, or it refuses.
        """
        with self._begun:  # held briefly; a second thread waits for the driver's own lock
            if index in self._contexts:
                return
            self._contexts.add(index)
            if self._library is None:
                self._library = self._open()
        opened = self.init()  # by every thread: the later ones wait in it for the first
        device = f"cuda:{index}"
        with self._span("context", "context", device):
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            self._check(opened.cuDeviceGet(ctypes.byref(handle), index), f"{device}: cuDeviceGet")
            self._check(opened.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"{device}: making its context")

    def init(self) -> ctypes.CDLL:
        """Call cuInit, and return the driver's library.

        Raises:
            DeviceError: there is no driver, or it refuses.
        """
        opened = self._library = self._library or self._open()
        with self._span("cuInit", "cuInit", ""):
            self._check(opened.cuInit(0), "cuInit")
        return opened

    def _open(self) -> ctypes.CDLL:
        with self._span("libraries", "open the CUDA driver", ""):
            try:
                return self._library_type("libcuda.so.1")
            except OSError as error:
                raise DeviceError(f"the CUDA driver cannot be opened: {error}") from error

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code:
            raise DeviceError(f"{what} failed with CUDA's error {code}")


INFO = 1
"""ONNX Runtime's severity from which on it says in its log how far a creation has come."""

_FIRST_WITHOUT_GIL = (1, 31)


class Observer(SessionObserver):
    """Writes events, and makes ONNX Runtime write its steps into its log and profiles."""

    def __init__(self, events: EventWriter, devices: Sequence[str], profiles: str, number: int | None = None) -> None:
        """
        Args:
            events: where to write.
            devices: the devices of all sessions.
            profiles: first part of the profiles' file names.
            number: the session of this process, if it makes only one.
        """
        self._events = events
        self._devices = tuple(devices)
        self._profiles = profiles
        self._number = number
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._current = threading.local()
        self._sessions: dict[int, tuple[int, str]] = {}  # by the object's id
        self._profiled: list[tuple[int, Any]] = []
        self._ran: set[int | None] = set()
        self._driver: Driver | None = None

    @contextlib.contextmanager
    def importing(self, name: str) -> Iterator[None]:
        with self._events.span("imports", name):
            yield

    @contextlib.contextmanager
    def opening(self, name: str) -> Iterator[None]:
        with self._events.span("libraries", name):
            yield

    def opened(self, onnxruntime: Any) -> None:
        release = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
        with self._events.span("measurement", "watch onnxruntime"):
            self._events.write("onnxruntime", release=onnxruntime.__version__)
            self._driver = Driver(self._device_span, hold_gil=release < _FIRST_WITHOUT_GIL)
            watch_phases(self._events, self._current, self._start_driver)

    def _start_driver(self) -> None:
        if self._current.device.startswith("cuda:"):
            assert self._driver is not None, "opened() comes first"
            self._driver.start(int(self._current.device.removeprefix("cuda:")))

    def _device_span(self, cause: str, name: str, device: str) -> contextlib.AbstractContextManager[None]:
        return self._events.span(cause, name, getattr(self._current, "session", None), device)

    def options(self, options: Any) -> None:
        options.log_severity_level = INFO
        if all(device.startswith("cuda:") for device in self._devices):
            # On the CPU ortmulti's sessions are handles of one, which a profile would forbid.
            options.enable_profiling = True
            options.profile_file_prefix = f"{self._profiles}ortmulti"
        logger = logging.getLogger("ortmulti.onnxruntime")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(_MarkWriter(self._events))

    @contextlib.contextmanager
    def creating(self, options: Any, device: str) -> Iterator[None]:
        number = self._take(device)
        options.log_severity_level = INFO
        options.logid = f"session-{number}"
        options.enable_profiling = True
        options.profile_file_prefix = f"{self._profiles}{number}"
        self._current.session, self._current.device = number, device
        with self._events.span(None, "create session", number, device):
            yield

    def _take(self, device: str) -> int:
        """Return the next of the sessions on `device` that has not begun."""
        if self._number is not None:
            return self._number
        with self._lock:
            number = next(
                number for number, name in enumerate(self._devices) if name == device and number not in self._taken
            )
            self._taken.add(number)
            return number

    def created(self, sessions: Sequence[Any], devices: Sequence[str], timeline: Timeline | None = None) -> None:
        if timeline is None:
            [session], [device] = sessions, devices
            self._add(self._current.session, session, device)
            return
        for number, (session, device) in enumerate(zip(sessions, devices, strict=True)):
            self._add(number, session, device)
        with self._events.span("measurement", "read the timeline"):
            for span in timeline.spans:
                self._events.write(
                    "core", name=span.name, start=span.start_ns, end=span.end_ns, thread=span.thread, device=span.device
                )

    def _add(self, number: int, session: Any, device: str) -> None:
        with self._lock:
            self._sessions[id(session)] = (number, device)
            self._profiled.append((number, session))

    @contextlib.contextmanager
    def running(self, session: Any) -> Iterator[None]:
        number, device = self._sessions.get(id(session), (None, ""))
        name = "second run" if number in self._ran else "first run"
        self._ran.add(number)
        with self._events.span("run", name, number, device):
            yield

    def finish(self) -> None:
        """End the profiles, after everything that is traced."""
        for number, session in self._profiled:
            options = session.get_session_options()
            if options.enable_profiling:
                path = Path(session.end_profiling())
                # Sessions that are created in the same millisecond are given the same file. Each writes it when its
                # profile ends, from the beginning.
                kept = Path(f"{self._profiles}kept-{number}.json")
                kept.write_bytes(path.read_bytes())
                os.truncate(path, 0)
                self._events.write("profile", session=number, path=str(kept))
        self._profiled.clear()


class _MarkWriter(logging.Handler):
    """Passes ONNX Runtime's log records on, as events."""

    def __init__(self, events: EventWriter) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self._events.write(
            "mark",
            time=getattr(record, "ort_time_ns", 0),
            thread=getattr(record, "ort_thread", 0),
            # There is also a line for each weight; its beginning tells the kind.
            text=message[:120],
        )


def watch_phases(events: EventWriter, current: threading.local, start_driver: Callable[[], None]) -> None:
    """Make onnxruntime's sessions report when they read the model and when they are initialized.

    The time between the two belongs to Python, and may be a wait for the GIL.

    Args:
        events: receives the reports.
        current: has the "session" and the "device" of the calling thread.
        start_driver: called between the two, before a session on a GPU starts the driver.
    """
    from onnxruntime.capi import _pybind_state

    original: Any = _pybind_state.InferenceSession

    class Watched(original):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            with events.span("read model", "construct", current.session, current.device):
                super().__init__(*arguments)

        def initialize_session(self, *arguments: Any) -> None:
            start_driver()
            with events.span("set up", "initialize", current.session, current.device):
                super().initialize_session(*arguments)

    _pybind_state.InferenceSession = Watched
