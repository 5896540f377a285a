"""Answers of pools for asyncio's event loops, and for loops with the same interface."""

from __future__ import annotations

import contextvars
import os
import weakref
from asyncio import AbstractEventLoop, get_running_loop, wrap_future

from ortmulti import _core
from ortmulti.errors import RuntimeException

__all__ = ["running_loop", "watch", "wrap_future"]

# A loop keeps its watch as long as it is open, by its reader. The core keeps what the last requests need.
_watches: weakref.WeakKeyDictionary[AbstractEventLoop, weakref.ref[_core.LoopWatch]] = weakref.WeakKeyDictionary()


def running_loop() -> AbstractEventLoop:
    """Return the loop that runs in this thread.

    Raises:
        RuntimeException: There is none, as under trio.
    """
    try:
        return get_running_loop()
    except RuntimeError:
        raise RuntimeException(
            "a pool needs asyncio's event loop to be awaited, and none runs in this thread: use asyncio.run, or under "
            "trio 'with' and trio.to_thread.run_sync(pool.run, None, feed)"
        ) from None


def watch(loop: AbstractEventLoop) -> bool:
    """Make the loop watch for its answers, and notify `_core.Pool.submit_async`. Call this in the loop's thread.

    Returns:
        False if the loop cannot watch file descriptors.
    """
    known = _watches.get(loop)
    found = None if known is None else known()
    if found is None:
        found = _core.LoopWatch()
        try:
            # In a context of its own: the loop keeps the context, and the task's has variables of the user.
            contextvars.Context().run(loop.add_reader, found.fileno(), found.deliver)
        except NotImplementedError:
            return False
        _watches[loop] = weakref.ref(found)
    found.remember(loop)
    return True


_core.set_running_loop(running_loop)
os.register_at_fork(after_in_child=_watches.clear)  # the parent's loops watch the same descriptors
