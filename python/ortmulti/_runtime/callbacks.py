"""The thread that tells callers what is done: it calls the callbacks of asynchronous runs.

The core's threads never wait for the GIL; what they have done waits in the core, and this thread takes all of it at
once.
"""

from __future__ import annotations

import os
import threading

from ortmulti import _core
from ortmulti._runtime.threads import Task

_task: Task | None = None
_ended = False
_lock = threading.Lock()


def _deliver() -> None:
    while _core.deliver_completions():
        pass


def start() -> bool:
    """Starts the thread, unless it runs in this process already; returns False where the interpreter is ending.

    Raises:
        RuntimeException: The system gives no further thread.
    """
    global _task
    if _task is not None:
        return True
    with _lock:
        if _ended:  # daemon threads may ask to the very end: with another thread, the one that ends would go on
            return False
        if _task is None:
            _core.open_completions()
            task = _task = Task(_deliver, "ortmulti-callbacks")
            try:
                task.start()
            except BaseException:
                if task.revoke():
                    _task = None
                raise
        return True


def stop() -> None:
    """Ends the thread, for good, after it has delivered what waits: at the interpreter's end, without sessions."""
    global _task, _ended
    with _lock:
        task, _task = _task, None
        _ended = True
    if task is not None:
        _core.close_completions()
        task.wait()


def _after_fork_in_child() -> None:
    global _task, _lock
    _lock = threading.Lock()
    _task = None  # it stayed with the parent; the next use starts another


os.register_at_fork(after_in_child=_after_fork_in_child)
