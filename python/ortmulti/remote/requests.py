"""Requests that their thread may give up: they run in an event loop of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ortmulti._runtime import startup
from ortmulti._runtime.threads import BackgroundThread, Task
from ortmulti.errors import RuntimeException
from ortmulti.remote.concurrency import Interrupted
from ortmulti.remote.remote_errors import NO_DESCRIPTORS, first_line

_T = TypeVar("_T")

_SLICE = 0.05  # seconds until a thread sees that it is to give up

# obstore's threads look at the interpreter once more after an answer, and after their request was given up, for which
# they wait for a processor. If it has ended by then, they panic, and the process may abort. Both in seconds.
_LAST_LOOK = 0.1
_LAST_LOOK_GIVEN_UP = 0.5

# The event loop takes 3, obstore's own one as many, and each connection one.
_DESCRIPTORS = 16

_loop: asyncio.AbstractEventLoop | None = None
_ends = 0.0  # when the last look is over


def _run() -> None:
    loop = _loop
    assert loop is not None
    loop.run_forever()
    until = _ends
    if given_up := asyncio.all_tasks(loop):
        for task in given_up:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*given_up, return_exceptions=True))
        until = time.monotonic() + _LAST_LOOK_GIVEN_UP
    loop.run_until_complete(asyncio.sleep(until - time.monotonic()))
    loop.close()


def _prepare() -> None:
    global _loop
    check_descriptors()
    startup.before_shut_down(_stop)
    startup.close_at_exit()
    _loop = asyncio.new_event_loop()  # here, where the caller gets an error


def check_descriptors() -> None:
    """Refuse to begin with too few: obstore cannot be used any more once its first use has failed.

    Raises:
        RuntimeException: There are too few.
    """
    held: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise RuntimeException(f"nothing can be read from a store: {NO_DESCRIPTORS}") from error
    finally:
        for each in held:
            os.close(each)


def _stop() -> None:
    def end() -> None:
        if _loop is not None:
            _loop.call_soon_threadsafe(_loop.stop)

    _thread.stop(end)


_thread = BackgroundThread(_run, "ortmulti-remote", _prepare)


def wait_for(request: Coroutine[Any, Any, _T], give_up: Callable[[], bool]) -> _T:
    """Return what a request returns, unless it is given up, or the process ends.

    Raises:
        Interrupted: It was.
        RuntimeException: No request can be made: there are too few file descriptors or threads.
        Exception: What the request raises.
    """
    global _ends
    try:
        started = _thread.start()
    except BaseException:
        request.close()
        raise
    loop = _loop
    if not started or loop is None or loop.is_closed():
        request.close()
        raise Interrupted
    last_look = _LAST_LOOK
    try:
        return _result(asyncio.run_coroutine_threadsafe(request, loop), lambda: give_up() or loop.is_closed())
    except Interrupted:
        last_look = _LAST_LOOK_GIVEN_UP
        raise
    finally:
        _ends = max(_ends, time.monotonic() + last_look)


def wait_for_call(call: Callable[[], _T], give_up: Callable[[], bool]) -> _T:
    """As `wait_for`, of a call that blocks. It has a thread of its own, which goes on when it is given up."""
    future: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:  # Giving up does not cancel a call that runs, so that its end can be set.
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Task(run, "ortmulti-redirects").start()
    return _result(future, give_up)


def _result(future: concurrent.futures.Future[_T], give_up: Callable[[], bool]) -> _T:
    while not concurrent.futures.wait([future], _SLICE).done:
        if give_up():
            future.cancel()
            raise Interrupted
    try:
        failure = future.exception()
    except concurrent.futures.CancelledError:
        raise Interrupted from None
    if failure is None:
        return future.result()
    if isinstance(failure, Exception):
        raise failure
    raise RuntimeException(  # a panic, from which obstore does not recover
        f"obstore failed: {first_line(str(failure))}: start this process again, with more threads and file descriptors"
    )
