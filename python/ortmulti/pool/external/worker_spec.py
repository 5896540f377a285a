"""Waiting until a backend's workers are ready."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ortmulti.pool.external.requests import Worker

__all__ = ["Notify", "Reports", "await_reports"]

Reports: TypeAlias = "queue.SimpleQueue[tuple[Worker, BaseException | None]]"
Notify: TypeAlias = Callable[[int, int, str], object]
"""Called as ``notify(ready, total, device)`` whenever a session is ready."""


def await_reports(reports: Reports, total: int, notify: Notify) -> None:
    """Wait until ``total`` workers have reported that they are ready.

    Raises:
        BaseException: The first error that a worker reported.
    """
    for ready in range(1, total + 1):
        worker, error = reports.get()
        if error is not None:
            raise error
        notify(ready, total, worker.device)
