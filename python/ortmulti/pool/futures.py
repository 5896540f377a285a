"""The future answer of a request to a pool."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ortmulti import _core
from ortmulti._runtime import native
from ortmulti._runtime.closing import stays_here
from ortmulti.errors import ForkError

if TYPE_CHECKING:
    from ortmulti._core import PoolRequest

__all__ = ["FORKED", "PoolFuture", "RequestTiming", "Submitted", "when_answered"]

Wrap: TypeAlias = Callable[[list[Any]], list[Any]]
Outcome: TypeAlias = list[Any] | BaseException
Timing: TypeAlias = tuple[float, float, float, float, str, int]
"""The arguments of `RequestTiming`."""

FORKED = "the request was made before this process was forked: its answer goes to the parent"
_PENDING, _FINISHED = ("PENDING", "RUNNING"), "FINISHED"

_logger = logging.getLogger("concurrent.futures")
_forks = 0  # that led to this process
_lock = native.RLock()  # under which a future gets its condition, or its answer without one


class RequestTiming(NamedTuple):
    """Where the time of one request went, in seconds.

    Attributes:
        queued: From the call until a session took it, with waits for room in the queue.
        joined: From then until its run began: with `Batching`, while others joined it.
        copied: Copies of inputs to the GPU and of outputs from there; 0.0 on the CPU.
        ran: The run of the model.
        device: Where: ``"cpu"`` or ``"cuda:N"``.
        batch_size: How many requests the run answered; 1 without `Batching`.
    """

    queued: float
    joined: float
    copied: float
    ran: float
    device: str
    batch_size: int


class _Condition(threading.Condition):
    """Its `with` takes the lock in C. The base does so in a Python function, in which Ctrl-C leaves the lock taken.

    The thread that delivers notifies it, which a lock of a greenlet need not notice. So all locks are of `native`.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)

    def __init__(self) -> None:
        self._native: Any = native.RLock()
        super().__init__(self._native)
        self._waiters: deque[threading.Lock]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as the base does."""
        waiter = native.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        taken = self._native._release_save()
        notified = False
        try:
            notified = waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            self._native._acquire_restore(taken)
            if not notified:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        return notified


class _LazyCondition:
    """Makes the condition of a future when it is first used.

    Most callers only wait for the result. The core does that without the GIL and without a Python object. A caller that
    uses the condition waits for the answer in another way, or has added a callback. So the request is followed from
    then on.
    """

    def __get__(self, future: PoolFuture | None, owner: type[PoolFuture]) -> Any:
        if future is None:
            return self
        while True:
            with _lock:
                request = future._request
                condition = future.__dict__.get("_condition")
                if condition is not None:
                    return condition
                # The condition comes last: after Ctrl-C between the two this follows twice, and takes the answer once.
                if request is None or future._made_after != _forks or request.follow(future, PoolFuture._complete):
                    return future._make_condition()
            future._settle(request)


class PoolFuture(Future[list[Any]]):
    """A ``concurrent.futures.Future`` of a request's outputs, as `InferenceSession.run` returns them.

    A thread that asks for the result waits in the core. One thread delivers the answers of all pools and calls the
    callbacks, so they must be short. A callback that is added after the answer is called at once. In a forked child
    `result` and `exception` raise `ForkError` if there was no answer before the fork.
    """

    __reduce__ = stays_here("send its result")

    _state = "PENDING"
    _result: list[Any] | None = None
    _exception: BaseException | None = None
    _timing: Timing | None = None
    _condition: Any = _LazyCondition()
    _done_callbacks: list[Callable[[PoolFuture], object]]
    _of_task = False  # then a closed pool is an error: CancelledError would say that the task was cancelled

    # Not the base's, which makes objects that most futures never need.
    def __init__(self, wrap: Wrap | None = None, request: PoolRequest | None = None) -> None:
        self._wrap = wrap
        self._request = request  # of the core, until its answer is here
        self._made_after = _forks

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait for the outputs and return them, or raise the request's error.

        Args:
            timeout: Seconds to wait; default: as long as it takes. It does not change the request's deadline.

        Raises:
            TimeoutError: No answer came in time.
            ForkError: The answer goes to the parent process.
        """
        self._wait(timeout)
        if self._state != _FINISHED:
            return super().result(timeout)
        if self._exception is None:
            return self._result  # type: ignore[return-value]
        try:
            raise self._exception
        finally:
            self = None  # type: ignore[assignment] # the traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the answer and return the exception with which the request failed, or None. See `result`."""
        self._wait(timeout)
        return self._exception if self._state == _FINISHED else super().exception(timeout)

    def done(self) -> bool:
        """Return whether the request was answered, has failed or was cancelled."""
        request = self._request
        if request is not None and request.arrived():
            self._settle(request)
        return self._state not in _PENDING

    def cancel(self) -> bool:
        """Cancel the request, also while it runs. The run ends early unless it has ``run_options``; its outputs are
        dropped.

        Returns:
            Whether it was cancelled; False if it was already answered or had failed.
        """
        request = self._request
        cancelled = super().cancel()
        if cancelled and request is not None:
            request.cancel()
        return cancelled

    @property
    def timing(self) -> RequestTiming | None:
        """Where the request's time went; None until it is answered, and if it failed or was cancelled."""
        return RequestTiming(*self._timing) if self.done() and self._timing is not None else None

    def _wait(self, timeout: float | None) -> None:
        """Wait for the core's answer, unless this future follows it: then the condition signals it."""
        if self._state not in _PENDING:
            return
        request = self._request
        # Not by `done`: at the fork another thread may have held the lock that it takes.
        if self._made_after != _forks and (request is None or not request.arrived()):
            raise ForkError(FORKED)
        if request is None or "_condition" in self.__dict__:
            return
        if request.wait(timeout):
            self._settle(request)
        elif self._state in _PENDING:
            raise TimeoutError(f"the request was not answered within {timeout} s, and goes on: cancel() ends it")

    def _settle(self, request: PoolRequest) -> None:
        """Take the answer, which is there, unless this future follows the request: then another thread does."""
        results, exception, cancelled, timing = request.take()
        results, exception = self._convert(results, exception)
        with _lock:
            if self._request is not None and "_condition" not in self.__dict__:
                # At once, and the request last: Ctrl-C may come at each call.
                state = "CANCELLED_AND_NOTIFIED" if cancelled else _FINISHED
                self.__dict__.update(_result=results, _exception=exception, _timing=timing, _state=state)
                self._request = None

    def _complete(
        self,
        results: list[Any] | None,
        exception: BaseException | None,
        cancelled: bool,
        timing: Timing | None,
    ) -> None:
        """Take the answer of a followed request, notify the waiting threads, and call the callbacks. Called by the
        thread that delivers, which Ctrl-C does not interrupt.
        """
        with _lock:
            if self._request is None:
                return  # it was settled just before it was followed
            self._request = None
            self._timing = timing
            if "_condition" not in self.__dict__:
                self._make_condition()
        if cancelled and not self._of_task:
            super().cancel()
        if not self.set_running_or_notify_cancel():
            self._invoke_callbacks()  # those that Ctrl-C kept `cancel` from calling
            return
        results, exception = self._convert(results, exception)
        if exception is None:
            self.set_result(results)  # type: ignore[arg-type]
        else:
            self.set_exception(exception)

    def _make_condition(self) -> _Condition:
        condition = _Condition()
        self.__dict__.update(_waiters=[], _done_callbacks=[], _condition=condition)
        return condition

    def _invoke_callbacks(self) -> None:
        """Call each callback once, however often this is called."""
        while True:
            with self._condition:
                if not self._done_callbacks:
                    return
                callback = self._done_callbacks.pop(0)
            try:
                callback(self)
            except Exception:
                _logger.exception("exception calling callback for %r", self)

    def _convert(
        self, results: list[Any] | None, exception: BaseException | None
    ) -> tuple[list[Any] | None, BaseException | None]:
        if exception is None and self._wrap is not None and results is not None:
            try:
                return self._wrap(results), None
            except Exception as failure:  # otherwise the waiting threads would never be notified
                return None, failure
        return results, exception


def when_answered(request: PoolRequest, call: Callable[..., object]) -> None:
    """Have ``call`` called with what `PoolRequest.take` returns: by the thread that delivers answers, or now."""
    if not request.follow(call, _call):
        _call(call, *request.take())


def _call(call: Callable[..., object], *taken: object) -> None:
    try:
        call(*taken)
    except Exception:  # as of a callback
        _logger.exception("exception calling %r", call)


class Submitted:
    """Requests that one thread submitted together, and whose answers it may take together. Futures would cost as much
    again, and the garbage collector would look at each.

    Args:
        wrap: Makes of the outputs what is returned.
    """

    def __init__(self, wrap: Wrap | None = None) -> None:
        self.requests: list[PoolRequest | Exception] = []
        """The core's, or why there is none: added one by one, so that those before Ctrl-C are here."""
        self._wrap = wrap
        self._made_after = _forks

    def done(self) -> bool:
        """Return whether the last one has its answer."""
        last = self.requests[-1]
        return isinstance(last, Exception) or last.arrived()

    def refused(self) -> bool:
        """Return whether there is an error in place of a request."""
        return any(isinstance(one, Exception) for one in self.requests)

    def timing(self) -> RequestTiming | None:
        """As that of a `PoolFuture`, of the first one, which has its answer."""
        request = self.requests[0]
        timing = None if isinstance(request, Exception) else request.take()[3]
        return None if timing is None else RequestTiming(*timing)

    def outcomes(self) -> list[Outcome]:
        """Wait for the outputs or the error of each.

        Raises:
            ForkError: Some answers go to the parent process.
        """
        self._check_fork()
        taken = _core.take_all(self.requests)
        return [self._outcome(one) for one in taken] if self._wrap or None in taken else taken  # type: ignore[return-value]

    def _check_fork(self) -> None:
        if self._made_after != _forks and not all(isinstance(one, Exception) or one.arrived() for one in self.requests):
            raise ForkError(FORKED)

    def _outcome(self, taken: list[Any] | BaseException | None) -> Outcome:
        if taken is None:
            return CancelledError()
        if self._wrap is None or isinstance(taken, BaseException):
            return taken
        try:
            return self._wrap(taken)
        except Exception as error:
            return error

    def cancel(self) -> None:
        """Cancel those that were not answered. In a forked child they are the parent's."""
        for request in self.requests:
            if self._made_after == _forks and not isinstance(request, Exception):
                request.cancel()


def _after_fork_in_child() -> None:
    global _forks, _lock
    _forks += 1
    _lock = native.RLock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
