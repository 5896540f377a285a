"""onnxruntime sessions in processes of their own, with inputs and outputs in shared memory."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ortmulti import _core, errors
from ortmulti._runtime.threads import Task
from ortmulti.errors import DeviceError, Error
from ortmulti.interface.onnxruntime_sessions import SessionSpec
from ortmulti.pool.external.signature import Signature
from ortmulti.pool.external.spawned import SpawnedSession
from ortmulti.pool.sleep import ModelFiles
from ortmulti.timeline import Timeline

__all__ = ["ProcessSession", "ProcessSessions"]

LOGGER = logging.getLogger("ortmulti")

_Reports: TypeAlias = "queue.SimpleQueue[tuple[int, BaseException | None]]"
"""The indices of sessions that are ready, or how they failed."""

# A process that dies before its first run is not started again for ever.
_MOST_STARTS = 3

# Past this a process that is to end is killed.
_PATIENCE = 10.0


class _ProcessLostError(DeviceError):
    """The process ended during a run or before it; see ``cpp/bindings/python_runner.hpp``."""

    def __init__(self, message: str, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class _Runner:
    """Runs the core's requests on one line of a session's process, one at a time."""

    def __init__(self, session: ProcessSession, index: int) -> None:
        self._session = session
        self._index = index
        self._terminated = 0

    def run(self, number: int, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """See ``cpp/bindings/python_runner.hpp``."""
        process = self._session.process
        if process is None:
            raise _ProcessLostError(f"{self._session.device}: its worker process has ended", begun=False)
        line = process.lines[self._index]
        if number and number == self._terminated:  # else `terminate` finds the line
            raise Error("the request was cancelled")
        try:
            return line.run(number, names, feed)
        except EOFError:
            died = process.death("while it had requests")
            self._session.lose(process)
            raise _ProcessLostError(str(died), line.begun) from None

    def terminate(self, number: int) -> None:
        """End this run, or prevent it; called by the core."""
        self._terminated = number
        process = self._session.process
        if process is not None:
            process.lines[self._index].terminate(number)


class ProcessSession:
    """A session in its own process, and the thread that starts the process again when it dies.

    Args:
        index: Index among the sessions.
        spec: The session's.
        timeline: Receives the creation's spans.
        reports: Receives one report: ready, or the error.
        in_flight: Number of runs that the process gets at a time.
    """

    def __init__(self, index: int, spec: SessionSpec, timeline: Timeline, reports: _Reports, in_flight: int) -> None:
        self.device = str(spec.device)
        self.process: SpawnedSession | None = None
        """The process, while it is ready."""
        self.restarts = 0
        """How often it was started again."""
        self.signature: Signature | None = None
        """What it takes and gives, once it was ready."""
        self.runners = [_Runner(self, number) for number in range(in_flight)]
        self._index = index
        self._spec = spec
        self._timeline = timeline
        self._reports = reports
        self._lock = threading.Lock()
        self._stopping = False
        self._started: SpawnedSession | None = None
        self._core: _core.Pool | None = None
        self._number = 0
        # It starts the processes: one whose parent's thread ends is ended by the kernel.
        self._keeper = Task(self._keep, f"ortmulti-{self.device}")

    def start(self) -> None:
        """Start the thread, and so the process. Separate from the constructor, so that an interrupt can be undone."""
        self._keeper.start()

    def join(self, core: _core.Pool) -> None:
        """Add its runners to a pool of the core."""
        assert self.signature is not None
        number = core.add_runners(self.device, self.runners, self.signature.check)
        with self._lock:
            self._core, self._number = core, number
            core.set_ready(number, self.process is not None)

    def lose(self, process: SpawnedSession) -> None:
        """Mark a process as ended: it gets no more requests."""
        with self._lock:
            if self.process is process:
                self.process = None
                if self._core is not None:
                    self._core.set_ready(self._number, False)

    def end(self) -> None:
        """End the process after its present runs, and do not start it again."""
        with self._lock:
            self._stopping = True
            started, ready = self._started, self.process
        if started is not None and started is not ready:
            started.kill()
        elif ready is not None:
            ready.end()

    def end_runs(self) -> None:
        """End its present runs, as far as possible."""
        if (process := self.process) is not None:
            for line in process.lines:
                line.end_run()

    def close(self) -> None:
        """End the process, and wait until it has ended."""
        self.end()
        self.wait()

    def wait(self) -> None:
        """Wait until the process and the thread have ended, after `end`."""
        self._keeper.revoke()  # where it was not started
        started = self._started
        if not self._keeper.wait(_PATIENCE) and started is not None:
            started.kill()
        self._keeper.wait()
        self._core = None

    # --- The thread that starts processes ---

    def _keep(self) -> None:
        idle_starts = 0
        reported = False
        while (process := self._start()) is not None:
            error: Exception | None = None
            try:
                if isinstance(process, Exception):
                    raise process
                process.load(self._spec, self._timeline)
                self._show(process)
                if not reported:
                    reported = True
                    self._reports.put((self._index, None))
                process.wait()
            except Exception as problem:
                error = problem
            ran, died = self._leave(process, error)
            if not reported:
                self._reports.put((self._index, error or died))
                return
            idle_starts = 0 if ran else idle_starts + 1
            if self._stopping:
                return
            if idle_starts >= _MOST_STARTS:
                reason = f"its worker has ended {idle_starts} times without a run: {error or died}"
                if self._core is not None:
                    self._core.give_up(self._number, reason)
                return
            LOGGER.warning("%s; it is started again", error or died)
            self.restarts += 1
        if not reported:
            self._reports.put((self._index, errors.ClosedError("the load was interrupted")))

    def _start(self) -> SpawnedSession | Exception | None:
        """Return a new process, or the error; None if no process is needed any more."""
        with self._lock:
            if self._stopping:
                return None
            try:
                self._started = SpawnedSession(self.device, len(self.runners))
            except Exception as problem:  # the system gives no process, no socket
                return errors.Fail(f"{self.device}: no worker process: {problem}")
            return self._started

    def _show(self, process: SpawnedSession) -> None:
        with self._lock:
            self.process = process
            self.signature = process.signature
            if self._core is not None:
                self._core.set_ready(self._number, True)

    def _leave(self, process: SpawnedSession | Exception, error: Exception | None) -> tuple[bool, Error]:
        """Stop using the process. Return whether it has run anything, and how it ended."""
        if isinstance(process, Exception):
            return False, DeviceError(str(process))
        if error is not None:
            process.kill()
        died = process.death("while it had requests")
        self.lose(process)
        with self._lock:
            self._started = None
        process.close()
        return process.has_run, died


class ProcessSessions:
    """Sessions of one model, each in a process.

    Args:
        specs: The specs of the sessions.
        notify: Called as ``notify(ready, total, device)`` whenever a session is ready, in the thread that calls `open`.
        in_flight: Number of runs that a process on a GPU gets at a time; a process on the CPU gets one.
    """

    def __init__(self, specs: Sequence[SessionSpec], notify: Callable[[int, int, str], object], in_flight: int) -> None:
        self._specs = specs
        self._notify = notify
        self._in_flight = in_flight
        self._files = ModelFiles(specs[0].model)
        self._reports: _Reports = queue.SimpleQueue()
        self.timeline = Timeline()
        self.sessions = [
            ProcessSession(index, spec, self.timeline, self._reports, in_flight if spec.device.kind == "cuda" else 1)
            for index, spec in enumerate(specs)
        ]

    @property
    def devices(self) -> list[str]:
        """The device of each session."""
        return [session.device for session in self.sessions]

    @property
    def signature(self) -> Signature:
        """The inputs and outputs of each session, once they are ready."""
        signature = self.sessions[0].signature
        assert signature is not None
        return signature

    @property
    def expected(self) -> int:
        """Number of requests that can be under way."""
        return sum(len(session.runners) for session in self.sessions)

    def restarts(self, device: str) -> int:
        """Return how often processes of a device were started again."""
        return sum(session.restarts for session in self.of(device))

    def of(self, device: str) -> list[ProcessSession]:
        """Return the sessions of a device."""
        return [session for session in self.sessions if session.device == device]

    def files(self) -> Sequence[_core.Source]:
        """Same as `ModelFiles.now`."""
        return self._files.now(self._specs[0].config_entries)

    def open(self) -> None:
        """Start the processes, all at the same time, and return when their sessions are ready.

        Raises:
            Error: The first one that failed; `close` ends the others.
        """
        for session in self.sessions:
            session.start()
        total = len(self.sessions)
        for ready in range(1, total + 1):
            index, error = self._reports.get()
            if error is not None:
                raise error
            self._notify(ready, total, self.sessions[index].device)

    def join(self, core: _core.Pool) -> None:
        """Add them to a pool of the core."""
        for session in self.sessions:
            session.join(core)

    def again(self, device: str) -> ProcessSessions:
        """Return sessions like those of a device, to be opened."""
        specs = [spec for spec in self._specs if str(spec.device) == device]
        others = ProcessSessions(specs, lambda *_: None, self._in_flight)
        for other, session in zip(others.sessions, self.of(device), strict=True):
            other.restarts = session.restarts
        return others

    def replace(self, others: ProcessSessions) -> None:
        """Put others of one device into the places of those that it has."""
        new = iter(others.sessions)
        device = others.sessions[0].device
        self.sessions = [next(new) if session.device == device else session for session in self.sessions]

    def end_runs(self) -> None:
        """End all present runs, as far as possible."""
        for session in self.sessions:
            session.end_runs()

    def close(self) -> None:
        """End the processes after the pool's last run. A second call does nothing."""
        for session in self.sessions:
            session.end()
        for session in self.sessions:
            session.wait()
