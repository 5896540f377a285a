"""Requests that their thread may give up: they run in an event loop of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ortmulti._runtime import startup
from ortmulti._runtime.threads import BackgroundThread
from ortmulti.remote.link import Interrupted

_T = TypeVar("_T")

_SLICE = 0.05  # seconds until a thread sees that it is to give up

_loop: asyncio.AbstractEventLoop | None = None
_started = threading.Event()


def _run() -> None:
    global _loop
    loop = asyncio.new_event_loop()
    _loop = loop
    loop.call_soon(_started.set)
    loop.run_forever()
    if given_up := asyncio.all_tasks(loop):
        for task in given_up:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*given_up, return_exceptions=True))
        # obstore's threads look at the interpreter once more, which must not have ended by then.
        loop.run_until_complete(asyncio.sleep(_SLICE))
    loop.close()


def _prepare() -> None:
    _started.clear()
    startup.before_shut_down(_stop)
    startup.close_at_exit()


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
        Exception: What the request raises.
    """
    if not _thread.start():
        request.close()
        raise Interrupted
    _started.wait()
    if _loop is None or _loop.is_closed():
        request.close()
        raise Interrupted
    future = asyncio.run_coroutine_threadsafe(request, _loop)
    while not concurrent.futures.wait([future], _SLICE).done:
        if give_up() or _loop.is_closed():
            future.cancel()
            raise Interrupted
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise Interrupted from None
