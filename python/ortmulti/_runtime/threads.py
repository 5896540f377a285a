"""Threads of this library that run Python code."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable

from ortmulti._runtime import native
from ortmulti.errors import RuntimeException

__all__ = ["BackgroundThread", "Change", "Changes", "Task"]

# Seconds of one wait for a lock. A signal that comes just before the wait does not end it.
_SLICE = 0.05


def _nothing() -> None:
    pass


class Task:
    """One call, in a thread of its own.

    After Ctrl-C in `start` it is unknown whether the thread exists. So the call can be revoked until it begins, and
    `wait` looks at the call instead of the thread. Only locks are used: they stay right where an interrupt leaves a
    `threading.Condition` locked.

    Args:
        call: The function that the thread calls.
        name: The thread's name.
    """

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self._call = call
        self._begun = native.Lock()
        self._ended = False
        self._unfinished = native.Lock()
        self._unfinished.acquire()
        self._name = name
        self._thread: int | None = None  # in which the call runs

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeException: The thread cannot be started, or the interpreter is ending.
        """
        handled = sys.exc_info()[1]
        try:
            native.start_thread(self._run, self._name)
        except RuntimeError as error:
            if error.__context__ not in (None, handled):  # Ctrl-C in the wait of `start`, whose Condition then fails
                raise error.__context__ from None
            raise RuntimeException(
                f"cannot start the thread {self._name!r}: {error}: allow this process more threads"
            ) from error

    def revoke(self) -> bool:
        """Prevent the call. False if it has begun, or was revoked before."""
        revoked = self._begun.acquire(blocking=False)
        if revoked:
            self._end()
        return revoked

    @property
    def ended(self) -> bool:
        """Whether the call has ended, or was revoked."""
        return self._ended

    def wait(self, timeout: float = -1) -> bool:
        """Wait until the call has ended or was revoked; return at once in its own thread.

        Args:
            timeout: Seconds; -1: as long as it takes.

        Returns:
            False after the timeout.
        """
        if self._thread == native.get_ident():
            return True
        end = math.inf if timeout == -1 else time.monotonic() + timeout
        # Ctrl-C between these two calls leaves the lock taken. So the flag decides.
        while not self._ended and (left := end - time.monotonic()) > 0:
            if self._unfinished.acquire(timeout=min(left, _SLICE)):
                self._unfinished.release()
        return self._ended

    def _run(self) -> None:
        if self._begun.acquire(blocking=False):
            self._thread = native.get_ident()
            try:
                self._call()
            finally:
                self._call = _nothing  # which may refer to this task, and to memory
                self._end()

    def _end(self) -> None:
        self._ended = True
        self._unfinished.release()


class BackgroundThread:
    """One thread of the process, started at the first use, and again once it has failed. A forked child starts its own.

    Args:
        call: The function that the thread calls.
        name: The thread's name.
        prepare: Called before the thread is started.
    """

    def __init__(self, call: Callable[[], object], name: str, prepare: Callable[[], object] | None = None) -> None:
        self._call = call
        self._name = name
        self._prepare = prepare
        self._task: Task | None = None
        self._stopped = False
        self._lock = native.Lock()
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def start(self) -> bool:
        """Start the thread, unless it runs already; return False once it was stopped.

        Raises:
            RuntimeException: The thread cannot be started.
        """
        if self._runs():
            return True
        with self._lock:
            if self._stopped:  # daemon threads may still call this at the very end, and the process would not end
                return False
            if not self._runs():
                if self._prepare is not None:
                    self._prepare()
                task = self._task = Task(self._call, self._name)
                try:
                    task.start()
                except BaseException:
                    if task.revoke():
                        self._task = None
                    raise
            return True

    def stop(self, close: Callable[[], object]) -> None:
        """End the thread for good, at the interpreter's end: `close` has the call return."""
        with self._lock:
            task, self._task = self._task, None
            self._stopped = True
        if task is not None:
            close()
            task.wait()

    def _runs(self) -> bool:
        task = self._task
        return task is not None and not task.ended

    def _after_fork_in_child(self) -> None:
        self._lock = native.Lock()
        self._task = None  # it stayed with the parent


class Change:
    """One change, which a thread waits for without holding a lock."""

    _LONGEST = 1.0  # seconds, in case that Ctrl-C ended the notification

    def __init__(self) -> None:
        self._pending = native.Lock()
        self._pending.acquire()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the change, ``timeout`` seconds at most. The wait may end early: look at the shared state again."""
        end = time.monotonic() + (self._LONGEST if timeout is None else min(timeout, self._LONGEST))
        while not self._pending.acquire(timeout=max(0.0, min(end - time.monotonic(), _SLICE))):
            if time.monotonic() >= end:
                return

    def happen(self) -> None:
        """End the wait."""
        if self._pending.locked():
            self._pending.release()


class Changes:
    """Notifies threads of changes. To be used under the lock of what changes.

    A wait of `threading.Condition` that Ctrl-C interrupts may leave the lock released that its `with` releases again.
    """

    def __init__(self) -> None:
        self._waiting: list[Change] = []

    def next(self) -> Change:
        """Return the next change; wait for it without the lock."""
        change = Change()
        self._waiting.append(change)
        return change

    def notify(self) -> None:
        """Wake all threads that wait."""
        for change in self._waiting:
            change.happen()
        self._waiting.clear()
