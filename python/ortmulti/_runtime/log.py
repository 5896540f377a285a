"""Passes ONNX Runtime's log to Python's `logging`.

ONNX Runtime calls its log function from any of its threads, and none of them may wait for the GIL. So the core queues
the records. A thread sleeps until there are records, and emits them here. A call that creates a session also emits them
before it returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ortmulti import _core
from ortmulti._runtime import native
from ortmulti._runtime.threads import BackgroundThread

if TYPE_CHECKING:
    import logging

# The core's own messages are in the same queue under this category, and go to a separate logger.
_CORE = "ortmulti"

# ONNX Runtime's severities 0 to 4, verbose, info, warning, error and fatal, as levels of `logging`.
_LEVELS = (10, 20, 30, 40, 50)
DEBUG, INFO = 10, 20

# What ONNX Runtime logs as an error of a node that failed, or of a run that was ended by its terminate flag: by a
# cancelled request or a passed deadline. Whoever asked for the run gets the exception with all of this text.
_FAILED = "Non-zero status code returned while running "
_ENDED = "Exiting due to terminate flag being set to true."

# Bounds one wait of the thread; a record or the end wakes it at once.
_WAIT_MS = 60_000

# Gets severity, category, logger, location and message of each record, instead of LOGGER.
Callback = Callable[[int, str, str, str, str], object]

# A thread that takes records holds this until they are emitted. So records keep their order, and are emitted when
# `flush` returns. A handler or callback may itself create sessions.
_emitting = native.RLock()

# How long `flush` waits for another thread's handler. That handler may wait for a lock of this thread.
_PATIENCE_S = 5.0

_callback: Callback | None = None


def logger(name: str = _CORE) -> logging.Logger:
    """Return a logger of ortmulti's. `logging` is imported at the first use: it takes 4 ms."""
    import logging

    return logging.getLogger(name)


def _emit(records: list[tuple[int, str, str, str, str, int, int]], dropped: int) -> None:
    if not records and not dropped:
        return
    onnxruntime = logger("ortmulti.onnxruntime")
    if dropped:
        onnxruntime.warning("%d of ONNX Runtime's log records were dropped: more came than could be emitted", dropped)
    for severity, category, name, location, message, time_ns, thread in records:
        raised = message.startswith(_FAILED) or message.endswith(_ENDED)
        level = DEBUG if raised else _LEVELS[min(max(severity, 0), len(_LEVELS) - 1)]
        if category == _CORE:
            logger().log(level, "%s", message)
        elif _called_back(severity, category, name, location, message):
            pass
        elif onnxruntime.isEnabledFor(level):
            extra: dict[str, Any] = {
                "ort_category": category,
                "ort_logger": name,
                "ort_location": location,
                "ort_time_ns": time_ns,  # of time.monotonic_ns's clock
                "ort_thread": thread,  # as threading.get_native_id gives it
                "ort_message": message,
            }
            # Without a configuration, `logging` prints the text alone.
            onnxruntime.log(level, "ONNX Runtime%s: %s", f" ({name})" if name else "", message, extra=extra)


def _called_back(*record: Any) -> bool:
    callback = _callback
    if callback is None:
        return False
    try:
        callback(*record)
    except Exception:
        logger().exception("the callback of set_default_logger_callback raised")
        return False
    return True


def set_callback(callback: Callback | None) -> None:
    """Set the receiver of ONNX Runtime's records; None: the logger. Queued records go to the former receiver."""
    global _callback
    flush()
    _callback = callback


def flush() -> None:
    """Emit the records so far, in this thread or in one that is already emitting, and return then."""
    if _emitting._is_owned():  # type: ignore[attr-defined]  # a handler creates a session
        _emit(*_core.take_log()[:2])
        return
    try:
        if _emitting.acquire(timeout=_PATIENCE_S):
            _emit(*_core.take_log()[:2])
    finally:
        # Ctrl-C comes where a call returns: after the acquisition, and after any other call here, as `suppress`.
        try:  # noqa: SIM105
            _emitting.release()
        except RuntimeError:  # it was not taken
            pass


def _emit_until_closed() -> None:
    while True:
        _core.wait_for_log(_WAIT_MS)
        with _emitting:
            records, dropped, closed = _core.take_log()
            _emit(records, dropped)
        if closed:
            return


_thread = BackgroundThread(_emit_until_closed, "ortmulti-log")


def start() -> None:
    """Start the emitting thread, unless it runs in this process already.

    Raises:
        RuntimeException: The thread cannot be started.
    """
    _thread.start()


def stop() -> None:
    """End the emitting thread after it has emitted the queued records."""
    _thread.stop(_core.close_log)


def _after_fork_in_child() -> None:
    global _emitting
    _emitting = native.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
