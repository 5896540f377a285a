"""How many ranges are asked of a store at the same time: as many as make it faster."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator

from ortmulti._runtime import native
from ortmulti._runtime.threads import Change, Changes

_links: weakref.WeakSet[Link] = weakref.WeakSet()

_FIRST = 8
_LEAST = 2
_GAIN = 1.15  # a doubling that brings less is not worth its memory
_WINDOW = 0.1  # seconds at least of one measurement


class Interrupted(Exception):  # noqa: N818  (no error, but the way out)
    """The reading was given up."""


class Link:
    """A limit on ranges under way, found by measurement.

    It begins with 8. While twice as many bring 15% more bytes a second, it doubles. An answer such as 503 halves it.
    """

    def __init__(self) -> None:
        self._lock = native.Lock()
        self._changes = Changes()
        self._under_way = 0
        self._limit = _FIRST
        self._grows = True
        self._best = 0.0  # bytes a second
        self.interrupts = 0
        self._restart()
        _links.add(self)

    @property
    def limit(self) -> int:
        """The limit now."""
        return self._limit

    @contextlib.contextmanager
    def place(self, interrupts: int) -> Iterator[None]:
        """Wait for a place among the ranges under way, and keep it.

        Args:
            interrupts: How many there were when the reading began.

        Raises:
            Interrupted: There was another one.
        """
        while (change := self._take(interrupts)) is not None:
            change.wait()
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._changes.notify()

    def _take(self, interrupts: int) -> Change | None:
        """Take a place, or return what to wait for."""
        with self._lock:
            if self.interrupts != interrupts:
                raise Interrupted
            if self._under_way >= self._limit:
                return self._changes.next()
            if self._under_way == 0:  # what was idle says nothing about the link
                self._restart()
            self._under_way += 1
            return None

    def came(self, size: int) -> None:
        """Count a range that came whole."""
        with self._lock:
            self._bytes += size
            self._ranges += 1
            seconds = time.monotonic() - self._since
            if not self._grows or self._ranges < 2 * self._limit or seconds < _WINDOW:
                return
            rate = self._bytes / seconds
            self._grows = rate > self._best * _GAIN
            if self._grows:
                self._limit *= 2
                self._changes.notify()
            elif self._best:
                self._limit = max(_LEAST, self._limit // 2)  # as before the last doubling
            self._best = max(self._best, rate)
            self._restart()

    def refused(self) -> None:
        """Ask for less: the store says that it is overloaded."""
        with self._lock:
            self._grows = False
            self._limit = max(_LEAST, self._limit // 2)
            self._restart()

    def wait(self, seconds: float, interrupts: int) -> None:
        """Wait, until an interrupt at most."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with self._lock:
                if self.interrupts != interrupts:
                    return
                change = self._changes.next()
            change.wait(left)

    def interrupt(self) -> None:
        """End the reading that is under way: those who wait here, and who looks at `interrupts`."""
        with self._lock:
            self.interrupts += 1
            self._changes.notify()

    def _restart(self) -> None:
        self._bytes = self._ranges = 0
        self._since = time.monotonic()


def interrupt_all() -> None:
    """End the reading from all stores that is under way."""
    for link in list(_links):
        link.interrupt()
