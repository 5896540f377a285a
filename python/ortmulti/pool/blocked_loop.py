"""The warning that `Pool.run` holds up an event loop."""

from __future__ import annotations

import inspect
import sys
import warnings
from types import FrameType

_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def warn_if_blocked(waited_ms: int) -> bool:
    """Warn if this thread, which waited so long for an answer, runs an event loop. Return whether it does."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return False
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame and _module(frame).startswith("ortmulti"):
        frame, level = frame.f_back, level + 1
    if not _runs_in_loop(frame):
        return False
    text = f"a run held up the event loop for {waited_ms} ms: await pool.run_async() instead of calling pool.run()"
    warnings.warn(text, RuntimeWarning, level)
    return True


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _runs_in_loop(frame: FrameType | None) -> bool:
    """Return whether a coroutine called the frame, or asyncio did.

    A notebook's cell runs within a loop, too, as a module: there a run that is awaited cannot be interrupted.
    """
    while frame and frame.f_code.co_name != "<module>":
        if frame.f_code.co_flags & _COROUTINE or _module(frame).startswith("asyncio"):
            return True
        frame = frame.f_back
    return frame is None
