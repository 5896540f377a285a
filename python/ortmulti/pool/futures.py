"""The answer of a request to a pool, which comes later."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from ortmulti.pool.engine import Engine

__all__ = ["PoolFuture"]


class PoolFuture(Future[list[Any]]):
    """A ``concurrent.futures.Future`` of a request's outputs, as `InferenceSession.run` returns them.

    Its callbacks are called by the thread that delivers all pools' answers: what takes long belongs elsewhere.
    """

    def __init__(self, pool: Engine) -> None:
        super().__init__()
        self._pool = pool
        self._request: Any = None

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

    def _complete(self, results: list[Any], exception: BaseException | None, cancelled: bool) -> None:
        if cancelled:
            super().cancel()
        if self.set_running_or_notify_cancel():
            if exception is None:
                self.set_result(results)
            else:
                self.set_exception(exception)
