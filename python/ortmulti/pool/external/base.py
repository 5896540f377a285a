"""onnxruntime's sessions as a pool's engine."""

from __future__ import annotations

import abc
import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ortmulti._runtime.threads import Task
from ortmulti.errors import ClosedError, InvalidArgument, RuntimeException
from ortmulti.options import RunOptions
from ortmulti.pool.configuration import Warmup
from ortmulti.pool.external import batches
from ortmulti.pool.external.dispatch import Dispatcher
from ortmulti.pool.external.requests import Request, Worker
from ortmulti.pool.external.signature import Signature
from ortmulti.timeline import Timeline

if TYPE_CHECKING:
    from ortmulti.pool.configuration import Batching

__all__ = ["BackendEngine"]

LOGGER = logging.getLogger("ortmulti")

# What is still running when the interpreter ends gets so long.
_PATIENCE_AT_EXIT = 10.0


class BackendEngine(abc.ABC):
    """The `ortmulti.pool.engine.Backend` over workers that are ready, or become so.

    Its threads know the dispatcher alone, so that a pool that nobody has any more is closed.
    """

    def __init__(
        self, name: str, dispatcher: Dispatcher, signature: Signature, timeline: Timeline, batching: Batching | None
    ) -> None:
        self._name = name
        self._dispatcher = dispatcher
        self._signature = signature
        self._timeline = timeline
        self._batching = batching
        self._devices = [worker.device for worker in dispatcher.workers]
        self._start = threading.Lock()
        self._last_seconds = float("inf")  # of the last run that `run` was asked for
        _open.add(dispatcher)
        # As the last one registered it is the first that runs: before onnxruntime's sessions on GPUs are freed.
        atexit.unregister(_close_open)
        atexit.register(_close_open)

    def __del__(self) -> None:
        dispatcher = self._dispatcher
        if dispatcher.is_here and not dispatcher.freed:  # also after a `close` that Ctrl-C ended
            # In a thread of its own, since this may be one that closing waits for, or hold any lock.
            with contextlib.suppress(RuntimeError):  # the interpreter is ending, and closes it
                threading.Thread(target=_close, args=(dispatcher, True), name="ortmulti-close", daemon=True).start()

    @property
    def devices(self) -> list[str]:
        return list(self._devices)

    @property
    def timeline(self) -> Timeline:
        return self._timeline

    @property
    def model(self) -> str:
        return self._signature.model

    @property
    @abc.abstractmethod
    def sessions(self) -> Any:
        """As `Backend.sessions`."""

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
        device: str = "",
        timeout: float | None = None,
    ) -> list[Any]:
        arrived = threading.Lock()
        arrived.acquire()
        request = self._request(
            output_names, input_feed, run_options, device, timeout, lambda _request: arrived.release()
        )
        if not self._run_here(request):
            self._dispatcher.submit(request)
        try:
            arrived.acquire()
        except BaseException:  # Ctrl-C
            self._dispatcher.cancel(request)
            raise
        self._last_seconds = request.seconds
        return request.take_outputs()

    def submit(
        self,
        future: Any,
        complete: Callable[..., None],
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        wait: float | None,
        limited: bool,
        run_options: RunOptions | None = None,
        device: str = "",
        timeout: float | None = None,
    ) -> Request:
        self._start_deliverer()
        request = self._request(output_names, input_feed, run_options, device, timeout, self._dispatcher.deliveries.put)
        request.answer = (future, complete)
        self._dispatcher.submit(request, limited, wait)
        return request

    def cancel(self, request: Request) -> bool:
        return self._dispatcher.cancel(request)

    def stats(self) -> dict[str, Any]:
        return self._dispatcher.stats()

    def close(self, cancel_waiting: bool) -> None:
        _close(self._dispatcher, cancel_waiting)

    def closed(self) -> bool:
        return self._dispatcher.closed

    def warm_up(self, warmup: Warmup) -> None:
        """Runs every session, each from a thread of its own; each adds a span to the timeline."""
        self._dispatcher.check_process()
        if self._dispatcher.closed:
            raise ClosedError("the pool is closed")
        feeds = [self._signature.check(None, feed) for feed in warmup.feeds(self._signature)]

        failures: list[Exception] = []

        def run(worker: Worker) -> None:
            start = time.monotonic_ns()
            try:
                for names, feed in feeds:
                    for _ in range(warmup.runs or 1):
                        worker.warm_up(names, feed)
            except Exception as error:
                failures.append(error)
            self._timeline.add("warm up", start, time.monotonic_ns(), worker.device)

        tasks = [Task(partial(run, worker), "ortmulti-warmup") for worker in self._dispatcher.workers]
        try:
            for task in tasks:
                task.start()
            for task in tasks:
                task.wait()
        except BaseException:  # no thread, or Ctrl-C: what has begun goes on until the pool is closed
            for task in tasks:
                task.revoke()
            raise
        if failures:
            raise failures[0]

    @abc.abstractmethod
    def _run_here(self, request: Request, /) -> bool:
        """Runs it in this thread, if a session is idle and this process has it, and says whether it did.

        It may be left to be concluded by others.
        """

    def _request(
        self,
        output_names: object,
        input_feed: object,
        run_options: RunOptions | None,
        device: str,
        timeout: float | None,
        notify: Callable[[Request], object],
    ) -> Request:
        self._dispatcher.check_process()
        if run_options is not None:
            raise InvalidArgument(
                f"a pool with backend={self._name!r} takes no run_options: its runs are onnxruntime's"
            )
        names, feed = self._signature.check(output_names, input_feed)
        request = Request(names, feed, device, timeout, notify)
        if self._batching is not None:
            batches.mark(request, self._batching)
        return request

    def _start_deliverer(self) -> None:
        dispatcher = self._dispatcher
        dispatcher.check_process()
        with self._start:
            if dispatcher.deliverer is None and not dispatcher.closed:
                thread = threading.Thread(target=_deliver, args=(dispatcher,), name="ortmulti-callbacks", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise RuntimeException(f"cannot start a thread for answers: {error}") from error
                dispatcher.deliverer = thread


_open: set[Dispatcher] = set()


def _close(dispatcher: Dispatcher, cancel_waiting: bool, patience: float | None = None) -> None:
    if not dispatcher.is_here:
        return
    dispatcher.close(cancel_waiting, patience)
    # Not with a lock: what it tells of may close the pool too.
    if dispatcher.deliverer is not None and dispatcher.deliverer is not threading.current_thread():
        dispatcher.deliverer.join(patience)
    _open.discard(dispatcher)


def _close_open() -> None:
    for dispatcher in list(_open):
        _close(dispatcher, cancel_waiting=True, patience=_PATIENCE_AT_EXIT)


def _deliver(dispatcher: Dispatcher) -> None:
    """Tells futures what became of their requests; what they call may ask the pool for more."""
    while (request := dispatcher.deliveries.get()) is not None:
        answer, request.answer = request.answer, None
        if answer is None:
            continue
        future, complete = answer
        outputs, error = None, None
        try:
            outputs = request.take_outputs()
        except BaseException as problem:
            error = problem.with_traceback(None)
        try:
            complete(future, outputs, error, request.cancelled)
        except BaseException:
            LOGGER.exception("a future could not be told its result")
        del request, answer, future, complete, outputs, error
    dispatcher.deliveries.put(None)  # for another such thread, as an interrupt in starting one may leave
