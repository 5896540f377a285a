"""A thread that knows when something is due."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ortmulti.errors import Fail
from ortmulti.pool.external.requests import Request

__all__ = ["Timers"]

_MAX_WAIT = 1e6


@dataclass(order=True, slots=True)
class _Entry:
    when: int
    number: int
    request: Request | None = field(compare=False)
    dropped: bool = field(default=False, compare=False)


class Timers:
    """Calls back at certain times; the thread is started for the first of them.

    Args:
        lock: Held by who calls the methods, and while `due` is called.
        due: What is called, with the request or None.
    """

    def __init__(self, lock: threading.Lock, due: Callable[[Request | None], None]) -> None:
        self._changed = threading.Condition(lock)
        self._due = due
        self._heap: list[_Entry] = []
        self._dropped = 0
        self._number = 0
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(self) -> None:
        """Starts the thread, if that was not done.

        Raises:
            Fail: The system gives no thread.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._keep, name="ortmulti-deadlines", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise Fail(f"the system gives no further thread for deadlines: {error}") from error
            self._thread = thread

    def add(self, when: int, request: Request | None = None) -> None:
        """Has `due` called at `when`, in nanoseconds of `time.monotonic_ns`'s clock."""
        self.start()
        self._number += 1
        entry = _Entry(when, self._number, request)
        if request is not None:
            request.timer = entry
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry:
            self._changed.notify()

    def drop(self, request: Request) -> None:
        """The request's time does not matter any more."""
        entry, request.timer = request.timer, None
        if entry is None:
            return
        entry.request, entry.dropped = None, True
        self._dropped += 1
        if self._dropped > 64 and 2 * self._dropped > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry.dropped]
            heapq.heapify(self._heap)
            self._dropped = 0

    def stop(self) -> threading.Thread | None:
        """Ends the thread, which is returned, to be joined without the lock."""
        self._stopped = True
        self._changed.notify_all()
        return self._thread

    def _keep(self) -> None:
        with self._changed:
            while not self._stopped:
                if not self._heap:
                    self._changed.wait()
                    continue
                left = (self._heap[0].when - time.monotonic_ns()) / 1e9
                if left > 0:
                    self._changed.wait(min(left, _MAX_WAIT))
                    continue
                entry = heapq.heappop(self._heap)
                if entry.dropped:
                    self._dropped -= 1
                    continue
                if entry.request is not None:
                    entry.request.timer = None
                self._due(entry.request)
                del entry  # what it was for may be freed
