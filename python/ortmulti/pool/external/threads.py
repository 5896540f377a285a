"""onnxruntime sessions in this process, each fed by a Python thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ortmulti import _core
from ortmulti._create.onnxruntime_errors import error_of, translate, why_broken
from ortmulti._create.onnxruntime_sessions import SessionSpec, create_session, open_package
from ortmulti._runtime.threads import Task
from ortmulti.errors import ClosedError
from ortmulti.pool.external import batches
from ortmulti.pool.external.base import BackendEngine
from ortmulti.pool.external.dispatch import Dispatcher
from ortmulti.pool.external.requests import Notify, Reports, Request, Run, Worker, await_reports
from ortmulti.pool.external.signature import Signature
from ortmulti.timeline import Timeline

if TYPE_CHECKING:
    from ortmulti.pool.configuration import Batching

__all__ = ["ThreadsEngine", "open_threads"]

# A run that takes longer is not done in the main thread, which alone can see Ctrl-C.
_LONGEST_UNINTERRUPTED = 0.02


class ThreadWorker(Worker):
    """A session of onnxruntime's, and the thread that creates and runs it.

    Args:
        spec: The session's.
        batching: How requests are joined, if they are.
        ort: The onnxruntime package.
        dispatcher: Who is told what has ended.
        timeline: Where the creation's span goes.
        reports: Where it says once that it is created, or why not.
        one_by_one: Held during the creation.
    """

    def __init__(
        self,
        spec: SessionSpec,
        batching: Batching | None,
        ort: Any,
        dispatcher: Dispatcher,
        timeline: Timeline,
        reports: Reports,
        one_by_one: contextlib.AbstractContextManager[Any],
    ) -> None:
        super().__init__(str(spec.device), 1)
        self.session: Any = None
        self._ort = ort
        self._spec: SessionSpec | None = spec
        self._model_text = spec.text
        self._batching = batching
        self._dispatcher = dispatcher
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._thread = Task(partial(self._work, timeline, reports, one_by_one), f"ortmulti-{spec.device}")

    def start(self) -> None:
        """Starts the thread; apart from making it, so that an interrupt in this can be undone."""
        self._thread.start()

    @property
    def signature(self) -> Signature:
        return Signature.of(self._model_text, self.session)

    def begin(self, run: Run) -> None:
        run.slot = self._ort.RunOptions()
        self._runs.put(run)

    def end_early(self, run: Run) -> None:
        if run.slot is not None:
            run.slot.terminate = True

    def has_begun(self, run: Run) -> bool:
        return run.taken

    def warm_up(self, names: Sequence[str], feed: Mapping[str, Any]) -> None:
        session = self.session
        if session is None:
            raise ClosedError("the pool is closed")
        try:
            session.run(names, feed)
        except Exception as error:
            raise error_of(*translate(error, self._context("running"))) from error

    def stop(self, patience: float | None) -> None:
        self._runs.put(None)
        self._thread.wait(-1 if patience is None else patience)
        self.session = None

    def leave(self) -> None:
        """Has the session freed as soon as it is created."""
        self._thread.revoke()
        self._runs.put(None)

    def do(self, run: Run) -> None:
        """Does a run that was taken up, in the calling thread."""
        answers: list[list[Any] | BaseException]
        broken = ""
        started = time.monotonic_ns()
        try:
            feed = batches.join(run, self._batching)
            outputs = self.session.run(run.requests[0].names, feed, run.slot)
            del feed
            answers = [*batches.split(outputs, run.requests, self._batching)]
        except Exception as error:
            answers = [error_of(*translate(error, self._context("running")))] * len(run.requests)
            broken = why_broken(self.device)
        ended = time.monotonic_ns()
        self._dispatcher.ended(run, answers, started, ended, broken)

    def give_up(self, run: Run) -> None:
        """Has the worker's thread find out what became of a run that was broken off in the calling one."""
        self._runs.put(run)

    def _context(self, doing: str) -> str:
        return f"{doing} {self._model_text} on {self.device}"

    def _create(self, timeline: Timeline) -> None:
        spec, self._spec = self._spec, None
        assert spec is not None
        start = time.monotonic_ns()
        self.session = create_session(self._ort, spec)
        timeline.add("create session", start, time.monotonic_ns(), self.device)

    def _work(self, timeline: Timeline, reports: Reports, one_by_one: contextlib.AbstractContextManager[Any]) -> None:
        try:
            with one_by_one:
                self._create(timeline)
        except BaseException as error:
            reports.put((self, error))
            return
        reports.put((self, None))
        while (run := self._runs.get()) is not None:
            if self._dispatcher.take_up(run):
                self.do(run)
            elif run.taken:
                failed = error_of("RuntimeException", "the run was broken off")
                now = time.monotonic_ns()
                self._dispatcher.ended(run, [failed] * len(run.requests), now, now)
            del run  # whose arrays are to be freed


def open_threads(
    specs: Sequence[SessionSpec],
    batching: Batching | None,
    dispatcher: Dispatcher,
    timeline: Timeline,
    notify: Notify,
) -> Signature:
    """Creates the sessions, at the same time, adds them to the dispatcher, and says what they take and give.

    Raises:
        Error: One could not be created; nothing is left of the others.
    """
    start = time.monotonic_ns()
    ort = open_package([spec.device for spec in specs])
    timeline.add("import onnxruntime", start, time.monotonic_ns())
    reports: Reports = queue.SimpleQueue()
    at_once = _core.concurrent_creation_stressed(ort.__version__)
    locks = {spec.device: threading.Lock() for spec in specs if not at_once and spec.device.kind == "cuda"}
    workers: list[ThreadWorker] = []
    try:
        for spec in specs:
            one_by_one = locks.get(spec.device, contextlib.nullcontext())
            workers.append(ThreadWorker(spec, batching, ort, dispatcher, timeline, reports, one_by_one))
            workers[-1].start()
        await_reports(reports, len(specs), notify)
        for worker in workers:
            dispatcher.add(worker)
        signature = workers[0].signature
        for worker in workers:
            dispatcher.ready(worker)
        return signature
    except BaseException:
        for worker in workers:
            worker.leave()
        raise


class ThreadsEngine(BackendEngine):
    """Runs in the calling thread where a session is idle, as the core's pool."""

    @property
    def sessions(self) -> Any:
        """The onnxruntime.InferenceSession objects, those of the first device first; none after `close`."""
        sessions = [worker.session for worker in self._dispatcher.workers if isinstance(worker, ThreadWorker)]
        return tuple(session for session in sessions if session is not None)

    def _run_here(self, request: Request, /) -> bool:
        if request.deadline is not None or request.key is not None:
            return False
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and self._last_seconds > _LONGEST_UNINTERRUPTED:
            return False
        run: Run | None = None
        try:
            run = self._dispatcher.take_idle(request)
            if run is None:
                return False
            assert isinstance(run.worker, ThreadWorker)
            run.worker.do(run)  # without options, since only another thread could end it
        except Exception:
            raise
        except BaseException:  # Ctrl-C, somewhere in this
            run = run or request.run
            if run is not None and isinstance(run.worker, ThreadWorker):
                run.worker.give_up(run)
            raise
        return True
