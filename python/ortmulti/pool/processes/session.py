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
from ortmulti.pool.processes.signature import Signature
from ortmulti.pool.processes.spawned import SpawnedSession
from ortmulti.timeline import Timeline

__all__ = ["ProcessSession", "close_sessions", "open_sessions"]

LOGGER = logging.getLogger("ortmulti")

_Reports: TypeAlias = "queue.SimpleQueue[tuple[ProcessSession, BaseException | None]]"
"""Sessions that are ready, or how they failed."""

# A process that dies before its first run is not started again for ever.
_MOST_STARTS = 3

# Past this a process that is to end is killed.
_PATIENCE = 10.0


def _lost(message: str, begun: bool) -> DeviceError:
    """Make the error of a process that ended, with the attribute by which ``cpp/bindings/python_runner.hpp`` knows it.

    Args:
        message: The error's.
        begun: Whether the run had begun.
    """
    error = DeviceError(message)
    error.begun = begun  # type: ignore[attr-defined]
    return error


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
            raise _lost(f"{self._session.device}: its worker process has ended", begun=False)
        line = process.lines[self._index]
        if number and number == self._terminated:  # else `terminate` finds the line
            raise Error("the request was cancelled")
        try:
            return line.run(number, names, feed)
        except EOFError:
            died = process.death("while it had requests")
            self._session.lose(process)
            raise _lost(str(died), line.begun) from None

    def terminate(self, number: int) -> None:
        """End this run, or prevent it; called by the core."""
        self._terminated = number
        process = self._session.process
        if process is not None:
            process.lines[self._index].terminate(number)


class ProcessSession:
    """A session in its own process, and the thread that starts the process again when it dies.

    Args:
        spec: The session's.
        timeline: Receives the creation's spans.
        in_flight: Number of runs that the process gets at a time.
    """

    def __init__(self, spec: SessionSpec, timeline: Timeline, in_flight: int) -> None:
        self.device = str(spec.device)
        self.process: SpawnedSession | None = None
        """The process, while it is ready."""
        self.restarts = 0
        """How often it was started again."""
        self.signature: Signature | None = None
        """What it takes and gives, once it was ready."""
        self.runners = [_Runner(self, number) for number in range(in_flight)]
        self._spec = spec
        self._timeline = timeline
        self._lock = threading.Lock()
        self._stopping = False
        self._started: SpawnedSession | None = None
        self._core: _core.Pool | None = None
        self._known_as: object = None
        self._reports: _Reports = queue.SimpleQueue()
        # It starts the processes: one whose parent's thread ends is ended by the kernel.
        self._keeper = Task(self._keep, f"ortmulti-{self.device}")

    def start(self, reports: _Reports) -> None:
        """Start the thread, and so the process. Separate from the constructor, so that an interrupt can be undone.

        Args:
            reports: Receives one report: ready, or the error.
        """
        self._reports = reports
        self._keeper.start()

    def join(self, core: _core.Pool) -> None:
        """Add its runners to a pool of the core."""
        assert self.signature is not None
        known_as = core.add_runners(self.device, self.runners, self.signature.check)
        with self._lock:
            self._core, self._known_as = core, known_as
            core.set_ready(known_as, self.process is not None)

    def lose(self, process: SpawnedSession) -> None:
        """Mark a process as ended: it gets no more requests."""
        with self._lock:
            if self.process is process:
                self.process = None
                if self._core is not None:
                    self._core.set_ready(self._known_as, False)

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
        close_sessions([self])

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
                    self._reports.put((self, None))
                process.wait()
            except Exception as problem:
                error = problem
            ran, died = self._leave(process, error)
            if not reported:
                self._reports.put((self, error or died))
                return
            idle_starts = 0 if ran else idle_starts + 1
            if self._stopping:
                return
            if idle_starts >= _MOST_STARTS:
                reason = f"its worker has ended {idle_starts} times without a run: {error or died}"
                if self._core is not None:
                    self._core.give_up(self._known_as, reason)
                return
            LOGGER.warning("%s; it is started again", error or died)
            self.restarts += 1
        if not reported:
            self._reports.put((self, errors.ClosedError("the load was interrupted")))

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
                self._core.set_ready(self._known_as, True)

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


def open_sessions(sessions: Sequence[ProcessSession], notify: Callable[[int, str], object]) -> None:
    """Start the processes, all at the same time, and return when their sessions are ready.

    Args:
        notify: Called in this thread as ``notify(ready, device)`` whenever a session is ready.

    Raises:
        Error: The first one that failed; `close_sessions` ends the others.
    """
    reports: _Reports = queue.SimpleQueue()
    for session in sessions:
        session.start(reports)
    for ready in range(1, len(sessions) + 1):
        session, error = reports.get()
        if error is not None:
            raise error
        notify(ready, session.device)


def close_sessions(sessions: Sequence[ProcessSession]) -> None:
    """End the processes after the pool's last run. A second call does nothing."""
    for session in sessions:
        session.end()
    for session in sessions:
        session.wait()
