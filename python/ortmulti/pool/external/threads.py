"""onnxruntime's sessions in this process."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ortmulti import _core
from ortmulti._runtime.threads import Task
from ortmulti.errors import ClosedError
from ortmulti.interface.onnxruntime_errors import error_of, translate
from ortmulti.interface.onnxruntime_sessions import SessionSpec, create_session, open_package
from ortmulti.pool.external.sessions import BackendSessions, Notify, Reports
from ortmulti.pool.external.signature import Signature

__all__ = ["ThreadSessions"]

_LIBC = ctypes.PyDLL(None)  # calls hold the GIL: the first ones may not come at once


class _Runner:
    """Runs one session for the core, one run at a time.

    Args:
        ort: The onnxruntime package.
        spec: The session's.
    """

    def __init__(self, ort: Any, spec: SessionSpec) -> None:
        self.session: Any = None
        self._make_options = ort.RunOptions
        self._context = f"running {spec.text} on {spec.device}"
        self._running: tuple[int, Any] = (0, None)
        self._terminated = 0

    def run(self, number: int, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """See ``cpp/bindings/python_runner.hpp``."""
        session = self.session
        if session is None:
            raise ClosedError("the pool is closed")
        options = None
        if number:
            options = self._make_options()
            self._running = (number, options)
            if self._terminated == number:  # else `terminate` finds the options
                options.terminate = True
        try:
            outputs: list[Any] = session.run(names, feed, options)
            return outputs
        except Exception as error:
            raise error_of(*translate(error, self._context)) from None

    def terminate(self, number: int) -> None:
        """As the other."""
        self._terminated = number
        running, options = self._running
        if running == number:
            options.terminate = True

    def end(self) -> None:
        """Has the run end that there is."""
        _, options = self._running
        if options is not None:
            options.terminate = True

    def close(self) -> None:
        """Give the session up."""
        self.session = None


class ThreadSessions(BackendSessions):
    """Sessions that the core's threads run, and its callers where one is idle."""

    def __init__(self, specs: Sequence[SessionSpec], notify: Notify) -> None:
        super().__init__(specs, notify)
        self._tasks: list[Task] = []
        self._signature: Signature | None = None

    @property
    def sessions(self) -> Any:
        """The onnxruntime.InferenceSession objects, those of the first device first; none after `close`."""
        sessions = [runner.session for runner in self.members]
        return tuple(session for session in sessions if session is not None)

    @property
    def signature(self) -> Signature:
        assert self._signature is not None
        return self._signature

    @property
    def expected(self) -> int:
        return len(self._specs)

    def open(self) -> None:
        start = time.monotonic_ns()
        ort = open_package([spec.device for spec in self._specs])
        self.timeline.add("import onnxruntime", start, time.monotonic_ns())
        reports: Reports = queue.SimpleQueue()
        at_once = _core.concurrent_creation_stressed(ort.__version__)
        locks = {spec.device: threading.Lock() for spec in self._specs if not at_once and spec.device.kind == "cuda"}
        self.members = [_Runner(ort, spec) for spec in self._specs]
        for index, spec in enumerate(self._specs):
            one_by_one = locks.get(spec.device, contextlib.nullcontext())
            create = partial(self._create, index, ort, spec, one_by_one, reports)
            self._tasks.append(Task(create, f"ortmulti-{spec.device}"))
            self._tasks[-1].start()
        self._await_reports(reports)
        self._signature = Signature.of(self._specs[0].text, self.members[0].session)

    def _create(
        self,
        index: int,
        ort: Any,
        spec: SessionSpec,
        one_by_one: contextlib.AbstractContextManager[Any],
        reports: Reports,
    ) -> None:
        try:
            with one_by_one:
                start = time.monotonic_ns()
                self.members[index].session = create_session(ort, spec)
                self.timeline.add("create session", start, time.monotonic_ns(), str(spec.device))
        except BaseException as error:
            reports.put((index, error))
            return
        reports.put((index, None))

    def join(self, core: _core.Pool) -> None:
        self._tasks.clear()
        for device, runner in zip(self.devices, self.members, strict=True):
            core.add_runners(device, [runner], self.signature.check, True)

    def again(self, device: str) -> ThreadSessions:
        return ThreadSessions([spec for spec in self._specs if str(spec.device) == device], lambda *_: None)

    def return_memory(self) -> None:
        # Threads that have ended created the sessions, each in a heap of its own, which the C library keeps.
        if hasattr(_LIBC, "malloc_trim"):  # glibc's
            _LIBC.malloc_trim(0)

    def end_runs(self) -> None:
        for runner in self.members:
            runner.end()

    def close(self) -> None:
        for task in self._tasks:  # what is being created goes with the last reference to it
            task.revoke()
        for runner in self.members:
            runner.close()
