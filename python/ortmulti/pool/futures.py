"""The answer of a request to a pool, which comes later."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ortmulti.errors import ForkError
from ortmulti.pool.engine import Engine

__all__ = ["PoolFuture"]

_forks = 0  # that led to this process


class PoolFuture(Future[list[Any]]):
    """A ``concurrent.futures.Future`` of a request's outputs, as `InferenceSession.run` returns them.

    Its callbacks are called by the thread that delivers all pools' answers: what takes long belongs elsewhere. In a
    forked child `result` and `exception` raise `ForkError` where the answer was not there before the fork.
    """

    def __init__(self, pool: Engine, wrap: Callable[[list[Any]], list[Any]] | None = None) -> None:
        super().__init__()
        self._pool = pool
        self._wrap = wrap
        self._request: Any = None
        self._made_after = _forks

    def result(self, timeout: float | None = None) -> list[Any]:
        self._check_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_process()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Cancels the request, also while it runs: the run is asked to end, unless it was given ``run_options``, and
        what it gives is dropped.

        Returns:
            Whether it was cancelled; False where it was answered or had failed before.
        """
        cancelled = super().cancel()
        if cancelled and self._request is not None:
            self._pool.cancel(self._request)
        return cancelled

    def _check_process(self) -> None:
        # Not by `done`: at the fork another thread may have held the lock that it takes.
        if self._made_after != _forks and self._state in ("PENDING", "RUNNING"):
            raise ForkError("the request was made before this process was forked, and its answer goes to the parent")

    def _complete(self, results: list[Any], exception: BaseException | None, cancelled: bool) -> None:
        if cancelled:
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return
        if exception is None and self._wrap is not None:
            try:
                results = self._wrap(results)
            except Exception as failure:  # else nobody would ever be told
                exception = failure
        if exception is None:
            self.set_result(results)
        else:
            self.set_exception(exception)


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)
