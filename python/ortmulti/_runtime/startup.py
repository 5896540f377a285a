"""The ONNX Runtime library of this process: opened at the first use, closed in order at exit."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from ortmulti import _core
from ortmulti._runtime import callbacks, log

_lock = threading.RLock()
_closes_at_exit = False


_first_at_exit: list[Callable[[], None]] = []


def before_shut_down(call: Callable[[], None]) -> None:
    """Has `call` called when the interpreter ends, before sessions are closed; once, however often it is given."""
    with _lock:
        if call not in _first_at_exit:
            _first_at_exit.append(call)


def _shut_down() -> None:
    for call in _first_at_exit:
        call()
    # Before the CUDA driver's own exit handlers: sessions freed after them crash the process.
    _core.shut_down()
    callbacks.stop()
    log.stop()


def close_at_exit() -> None:
    """Has everything closed in order when the interpreter ends."""
    global _closes_at_exit
    with _lock:
        if not _closes_at_exit:
            atexit.register(_shut_down)
            _closes_at_exit = True


def ensure_library() -> None:
    """Opens the ONNX Runtime of this Python environment, without its environment, which can still be configured.

    Raises:
        LibraryError: None is installed, or it cannot be used; the message says what to install.
    """
    if _core.is_library_open():
        return
    with _lock:
        if not _core.is_library_open():
            from ortmulti._runtime import libraries

            _core.open_library(str(libraries.find_onnxruntime().path))


def ensure_open() -> None:
    """Opens the ONNX Runtime of this Python environment and makes its environment, unless that was done before.

    Raises:
        LibraryError: None is installed, or it cannot be used; the message says what to install.
        Fail, InvalidArgument, ...: ONNX Runtime does not take what `configure` has set.
        RuntimeException: The system gives no thread for the log.
    """
    if not (_closes_at_exit and _core.has_environment()):
        with _lock:
            ensure_library()
            close_at_exit()  # first, so that it holds where the rest fails
            _core.start_environment()
    log.start()


def get_available_providers() -> list[str]:
    """The names of the execution providers that the installed ONNX Runtime was built with, as onnxruntime's function.

    Raises:
        LibraryError: No ONNX Runtime is installed.
    """
    ensure_library()
    return list(_core.available_providers())
