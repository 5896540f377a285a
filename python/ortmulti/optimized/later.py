"""Entries that are made behind a load, for the next one: the end of the process does not wait for them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from ortmulti._runtime import startup
from ortmulti._runtime.threads import Task
from ortmulti.errors import Error
from ortmulti.optimized.entries import StagedEntry

_SMALL = 4 << 20
"""Bytes that are split, checked and published within milliseconds."""

_LOGGER = logging.getLogger("ortmulti")


class _Ended(Exception):  # noqa: N818  (no error, but the way out)
    pass


_lock = threading.Lock()
_tasks: dict[Task, int] = {}  # with the process that each belongs to
_ending = threading.Event()


def keep(staged: StagedEntry, make: Callable[[Callable[[], object]], object]) -> None:
    """Make an entry of what a session has saved, in the background if that is much. Failures are logged.

    Args:
        staged: It is removed if it was not published by the end, or by the end of the process.
        make: Makes and publishes it. Its argument is to be called in short intervals, and raises to end it.
    """

    def run() -> None:
        try:
            with staged:
                make(_poll)
        except _Ended:
            pass
        except (Error, OSError) as error:
            _LOGGER.info("the optimized model is not kept: %s", error)

    if staged.saved.stat().st_size <= _SMALL:
        run()
        return

    def run_task() -> None:
        try:
            run()
        finally:
            with _lock:
                _tasks.pop(task, None)

    startup.before_shut_down(_end)
    task = Task(run_task, "ortmulti-entry")
    with _lock:
        _tasks[task] = os.getpid()
    try:
        task.start()
    except BaseException:
        if task.revoke():
            with _lock:
                _tasks.pop(task, None)
            staged.discard()
        raise


def wait_for_entries() -> None:
    """Wait until nothing is made in the background any more."""
    for task in _own():
        task.wait()


def _own() -> list[Task]:
    with _lock:
        return [task for task, process in _tasks.items() if process == os.getpid()]


def _poll() -> None:
    if _ending.is_set():
        raise _Ended


def _end() -> None:
    _ending.set()
    wait_for_entries()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _tasks.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
