"""How many requests may wait, and what happens to more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ortmulti.errors import QueueFull
from ortmulti.pool.external.requests import Request

__all__ = ["Admission"]


class Admission:
    """A limit of what waits. Its methods are called with the dispatcher's lock.

    Args:
        lock: The dispatcher's.
        most: How many may wait; None: any number.
        count: How many wait now.
    """

    def __init__(self, lock: threading.Lock, most: int | None, count: Callable[[], int]) -> None:
        self._changed = threading.Condition(lock)
        self._most = most
        self._count = count
        self.rejected = 0
        """How many requests were refused."""

    def is_full(self) -> bool:
        """Whether no further request may wait."""
        return self._most is not None and self._count() >= self._most

    def wait(self, request: Request, give_up: float | None) -> None:
        """Waits until there may be room, or the request's deadline.

        Args:
            give_up: Until when, on `time.monotonic`'s clock.

        Raises:
            QueueFull: It is too late.
        """
        left = None if give_up is None else give_up - time.monotonic()
        if left is not None and left <= 0:
            self.rejected += 1
            raise QueueFull(f"the pool's queue is full: {self._count()} requests wait")
        until_deadline = None if request.deadline is None else (request.deadline - time.monotonic_ns()) / 1e9
        self._changed.wait(min(one for one in (left, until_deadline, 1e6) if one is not None))

    def note(self) -> None:
        """There may be room now."""
        if self._most is not None:
            self._changed.notify_all()
