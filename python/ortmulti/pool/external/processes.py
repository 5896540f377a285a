"""onnxruntime sessions in processes of their own, with inputs and outputs in shared memory."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ortmulti import errors
from ortmulti._create.onnxruntime_sessions import SessionSpec
from ortmulti._runtime.threads import Task
from ortmulti.errors import Error, InvalidArgument, InvalidType
from ortmulti.pool.external import batches
from ortmulti.pool.external.base import BackendEngine
from ortmulti.pool.external.dispatch import Dispatcher
from ortmulti.pool.external.requests import Notify, Reports, Request, Run, Worker, await_reports
from ortmulti.pool.external.shm import Segment
from ortmulti.pool.external.signature import Signature
from ortmulti.pool.external.spawned import SpawnedSession
from ortmulti.timeline import Timeline

if TYPE_CHECKING:
    from ortmulti.pool.configuration import Batching

__all__ = ["ProcessWorker", "ProcessesEngine", "open_processes"]

LOGGER = logging.getLogger("ortmulti")

# A process that dies before its first run is not started again for ever.
_MOST_STARTS = 3

# Past this a process that is to end is killed.
_PATIENCE = 10.0


class _WarmUp:
    """A run beside the queue."""

    def __init__(self, names: Sequence[str], feed: Mapping[str, Any]) -> None:
        self.names = names
        self.feed = feed
        self.ended = threading.Event()
        self.error: Error | None = None

    def answered(self, answer: list[Any] | Error | None, _started: int, _ended: int) -> None:
        self.error = answer if isinstance(answer, Error) else None
        self.ended.set()


class ProcessWorker(Worker):
    """A session in a process of its own, which is started again when it dies, and two threads for it.

    Args:
        spec: The session's.
        batching: How requests are joined, if they are.
        dispatcher: Who is told what has ended.
        timeline: Where the creation's spans go.
        reports: Where it says once that it is ready, or why not.
        in_flight: How many runs it is given at a time.
    """

    def __init__(
        self,
        spec: SessionSpec,
        batching: Batching | None,
        dispatcher: Dispatcher,
        timeline: Timeline,
        reports: Reports,
        in_flight: int,
    ) -> None:
        super().__init__(str(spec.device), in_flight)
        self._spec = spec
        self._batching = batching
        self._dispatcher = dispatcher
        self._timeline = timeline
        self._lock = threading.Lock()
        self._stopping = False
        self._session: SpawnedSession | None = None
        self._warming = threading.Lock()
        self._numbers = itertools.count()
        self._to_send: queue.SimpleQueue[Run | tuple[str, Any] | None] = queue.SimpleQueue()
        self._sender = Task(self._send_all, f"ortmulti-send-{spec.device}")
        # It starts the processes too: one whose parent's thread ends is ended by the kernel.
        self._receiver = Task(partial(self._keep, reports), f"ortmulti-{spec.device}")

    def start(self) -> None:
        """Starts the threads, and so the process; apart from making it, so that an interrupt in this can be undone."""
        self._sender.start()
        self._receiver.start()

    @property
    def signature(self) -> Signature:
        """What the session takes and gives, once it is ready."""
        assert self._session is not None
        assert self._session.signature is not None
        return self._session.signature

    @property
    def pid(self) -> int | None:
        """The process's number; None where there is none now."""
        session = self._session
        return None if session is None else session.pid

    def begin(self, run: Run) -> None:
        self._to_send.put(run)

    def end_early(self, run: Run) -> None:
        self._to_send.put(("cancel", run))

    def has_begun(self, run: Run) -> bool:
        return run.slot is not None and run.slot[1].begun

    def warm_up(self, names: Sequence[str], feed: Mapping[str, Any]) -> None:
        with self._warming:  # there is one slot for this
            warm_up = _WarmUp(names, feed)
            with self._lock:
                if self._stopping:
                    raise errors.ClosedError("the pool is closed")
                self._to_send.put(("warm up", warm_up))
            warm_up.ended.wait()
        if warm_up.error is not None:
            raise warm_up.error

    def stop(self, patience: float | None) -> None:
        with self._lock:
            self._stopping = True
            session = self._session
            if session is not None and session.signature is None:
                session.kill()
        self._to_send.put(("end", None))
        self._receiver.revoke()  # where it was not started
        if not self._receiver.wait(_PATIENCE if patience is None else patience) and session is not None:
            session.kill()
        self._receiver.wait()
        self._to_send.put(None)
        self._sender.revoke()
        self._sender.wait()

    # --- The thread that starts processes and receives ---

    def _keep(self, reports: Reports) -> None:
        idle_starts = 0
        reported = False
        while True:
            try:
                session = self._start()
                if session is None:
                    break
                done, error = 0, None
                try:
                    session.load(self._spec, self._timeline)
                    if not reported:
                        reported = True
                        reports.put((self, None))
                    self._dispatcher.ready(self)
                    done = session.receive()
                except Error as problem:
                    error = problem
                    session.kill()
                died = session.death("while it had requests")
            except Exception as problem:  # the system gives no process, no socket
                session, done, error = None, 0, errors.Fail(f"{self.device}: no worker process: {problem}")
                died = errors.DeviceError(str(error))
            if not reported:
                self._leave(session, died)
                reports.put((self, error or died))
                return
            ran = self._dispatcher.lost(self, died) or done > 0
            self._leave(session, died)
            idle_starts = 0 if ran else idle_starts + 1
            if self._stopping:
                break
            if idle_starts >= _MOST_STARTS:
                self._dispatcher.gave_up(
                    self, f"its worker has ended {idle_starts} times without a run: {error or died}"
                )
                break
            LOGGER.warning("%s; it is started again", error or died)
            self._dispatcher.restarted(self)
        if not reported:
            reports.put((self, errors.ClosedError("the load was broken off")))

    def _start(self) -> SpawnedSession | None:
        with self._lock:
            if self._stopping:
                return None
            # One for warming up, and one whose answer is just being told.
            self._session = SpawnedSession(self.device, self.capacity + 2)
            return self._session

    def _leave(self, session: SpawnedSession | None, died: Error) -> None:
        with self._lock:
            self._session = None
        if session is not None:
            session.close(died)

    # --- The thread that sends ---

    def _send_all(self) -> None:
        while (message := self._to_send.get()) is not None:
            # Before it is asked whether the run is to be done: so it is the process that it was meant for.
            session = self._session
            if isinstance(message, Run):
                if self._dispatcher.take_up(message):
                    self._send(session, message)
            elif message[0] == "warm up":
                self._send_warm_up(session, message[1])
            elif message[0] == "cancel":
                if session is not None and message[1].slot is not None:
                    session.cancel(message[1].slot[0])
            elif session is not None:
                session.end()
            del message

    def _send(self, session: SpawnedSession | None, run: Run) -> None:
        if session is None:
            return  # it has died, and who runs this instead is found
        number = next(self._numbers)

        def filled(segment: Segment) -> None:
            run.slot = (number, segment)

        def answered(answer: list[Any] | Error | None, started: int, ended: int) -> None:
            self._answered(run, answer, started, ended)

        try:
            session.send(number, run.requests[0].names, batches.join(run, self._batching), answered, filled)
        except Exception as problem:
            now = time.monotonic_ns()
            self._answered(run, errors.Fail(f"{self.device}: the request cannot be sent: {problem}"), now, now)

    def _send_warm_up(self, session: SpawnedSession | None, warm_up: _WarmUp) -> None:
        try:
            if session is None:
                raise errors.DeviceError(f"{self.device}: its worker process has ended")
            number = next(self._numbers)
            session.send(number, warm_up.names, warm_up.feed, warm_up.answered, lambda _segment: None)
        except Exception as problem:
            warm_up.answered(problem if isinstance(problem, Error) else errors.Fail(str(problem)), 0, 0)

    def _answered(self, run: Run, answer: list[Any] | Error | None, started: int, ended: int) -> None:
        answers: list[list[Any] | BaseException]
        try:
            if isinstance(answer, list):
                answers = [*batches.split(answer, run.requests, self._batching)]
            else:
                answers = [answer or Error("the request was cancelled")] * len(run.requests)
        except Error as problem:
            answers = [problem] * len(run.requests)
        self._dispatcher.ended(run, answers, started, ended)


def open_processes(
    specs: Sequence[SessionSpec],
    batching: Batching | None,
    dispatcher: Dispatcher,
    timeline: Timeline,
    notify: Notify,
    in_flight: int,
) -> Signature:
    """Starts the processes, at the same time, adds them to the dispatcher, and says what they take and give.

    Raises:
        Error: One could not be started, or its session not created; nothing is left of the others.
    """
    if isinstance(in_flight, bool) or not isinstance(in_flight, int):
        raise InvalidType(f"in_flight is an int, not {in_flight!r}")
    if in_flight < 1:
        raise InvalidArgument(f"in_flight is 1 or more, not {in_flight}")
    reports: Reports = queue.SimpleQueue()
    workers: list[ProcessWorker] = []
    try:
        for spec in specs:
            worker = ProcessWorker(spec, batching, dispatcher, timeline, reports, in_flight)
            workers.append(worker)
            dispatcher.add(worker)
            worker.start()
        await_reports(reports, len(specs), notify)
        return workers[0].signature
    except BaseException:
        for worker in workers:
            worker.stop(0)
        raise


class ProcessesEngine(BackendEngine):
    """Workers that are processes."""

    @property
    def sessions(self) -> Any:
        raise errors.NotImplemented(
            "the sessions of a pool with backend='processes' are in its workers' processes, out of this one's reach"
        )

    def _run_here(self, _request: Request, /) -> bool:
        return False

    @property
    def pids(self) -> list[int]:
        """The workers' processes that there are now."""
        pids = [worker.pid for worker in self._dispatcher.workers if isinstance(worker, ProcessWorker)]
        return [pid for pid in pids if pid is not None]
