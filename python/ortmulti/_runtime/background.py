"""Work behind a program's back, in threads: the end of the process ends it and does not wait for its result."""

from __future__ import annotations

import os
from collections.abc import Callable

from ortmulti._runtime import native, startup
from ortmulti._runtime.threads import Task

__all__ = ["Ended", "do", "poll", "wait"]

Poll = Callable[[], object]


class Ended(Exception):  # noqa: N818  (no error, but the way out)
    """The process ends."""


_lock = native.Lock()
_tasks: dict[Task, int] = {}  # with the process that each belongs to
_ending = False


def do(work: Callable[[Poll], object], name: str, not_begun: Callable[[], object]) -> Task:
    """Do work in a thread of its own, and return at once.

    Args:
        work: Its argument is to be called in short intervals, and raises `Ended` to end it.
        name: The thread's name.
        not_begun: Called where the work was not begun.

    Raises:
        RuntimeException: The thread cannot be started.
    """

    def run() -> None:
        try:
            work(poll)
        except Ended:
            pass
        finally:
            with _lock:
                _tasks.pop(task, None)

    startup.before_shut_down(_end)
    task = Task(run, name)
    with _lock:
        _tasks[task] = os.getpid()
    try:
        task.start()
    except BaseException:
        if task.revoke():
            with _lock:
                _tasks.pop(task, None)
            not_begun()
        raise
    return task


def wait() -> None:
    """Wait until nothing is done any more."""
    for task in _own():
        task.wait()


def _own() -> list[Task]:
    with _lock:
        return [task for task, process in _tasks.items() if process == os.getpid()]


def poll() -> None:
    """Raise `Ended` where the process ends."""
    if _ending:
        raise Ended


def _end() -> None:
    global _ending
    _ending = True
    wait()


def _after_fork_in_child() -> None:
    global _lock
    _lock = native.Lock()  # another thread of the parent may have held it
    _tasks.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
