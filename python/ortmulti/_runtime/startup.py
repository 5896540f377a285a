"""ONNX Runtime and CUDA in this process: opened at the first use, closed in order at exit."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from collections.abc import Callable

from ortmulti import _core
from ortmulti._runtime import callbacks, log, native
from ortmulti.errors import LibraryError

_lock = native.RLock()
_closes_at_exit = False


_first_at_exit: list[Callable[[], None]] = []


def before_shut_down(call: Callable[[], None]) -> None:
    """Register a call for the end of the interpreter, before sessions are closed. A call that is given again runs
    once.
    """
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
    """Register the end of the interpreter: everything is closed in order."""
    global _closes_at_exit
    with _lock:
        if not _closes_at_exit:
            atexit.register(_shut_down)
            _closes_at_exit = True


def ensure_library() -> None:
    """Open the ONNX Runtime of this Python environment, without its environment, which can still be configured.

    Raises:
        LibraryError: None is installed, or it cannot be used; the message says what to install.
    """
    if _core.is_library_open():
        return
    with _lock:
        if not _core.is_library_open():
            from ortmulti._runtime import libraries

            runtime = libraries.find_onnxruntime()
            _core.open_library(str(runtime.path), str(runtime.provider or ""))


def ensure_open() -> None:
    """Open the ONNX Runtime of this Python environment and make its environment, unless that was done before.

    Raises:
        LibraryError: None is installed, or it cannot be used; the message says what to install.
        Fail, InvalidArgument, ...: ONNX Runtime does not take what `configure` has set.
        RuntimeException: The thread for the log cannot be started.
    """
    if not (_closes_at_exit and _core.has_environment()):
        with _lock:
            ensure_library()
            close_at_exit()  # first, so that it is registered if the rest fails
            _core.start_environment()
    log.start()


def begin_opening() -> None:
    """Begin what `ensure_open` does, in the background. What fails there is reported by `ensure_open`."""
    if _core.is_library_open():
        return
    from ortmulti._runtime import libraries

    with contextlib.suppress(LibraryError):
        runtime = libraries.find_onnxruntime()
        close_at_exit()
        _finish_before_forks()
        _core.begin_opening_library(str(runtime.path), str(runtime.provider or ""))


@functools.cache
def _finish_before_forks() -> None:
    os.register_at_fork(before=_core.finish_opening_library)  # or a child would wait for the thread for ever


def get_available_providers() -> list[str]:
    """Return the names of the execution providers that the installed ONNX Runtime was built with.

    Raises:
        LibraryError: No ONNX Runtime is installed.
    """
    ensure_library()
    return list(_core.available_providers())


def begin_opening_libraries() -> None:
    """Open the CUDA libraries in the background, unless they are open or that is under way."""
    if _core.cuda_driver_version() is None:
        return
    from ortmulti._runtime import cuda_libraries, libraries

    try:
        runtime = libraries.find_onnxruntime()
        if not runtime.has_cuda or cuda_libraries.why_no_cuda(runtime):
            return
    except LibraryError:
        return  # the first use raises the error
    found = [str(path) for path in cuda_libraries.find_cuda_libraries(runtime).found]
    linked = max((i + 1 for i, path in enumerate(found) if path.rsplit("/", 1)[-1] in runtime.cuda_needed), default=0)
    _core.begin_opening_cuda_libraries(found[:linked], found[linked:])


def device_count() -> int:
    """Return how many CUDA devices this process sees; starts CUDA.

    Returns:
        0 on a machine without NVIDIA hardware, or where CUDA_VISIBLE_DEVICES hides it.

    Raises:
        DeviceError: There is hardware, and its driver does not work.
        ForkError: This process was forked after its parent had started CUDA.
    """
    begin_opening_libraries()
    return _core.cuda_device_count()


def hidden_gpus(devices: str = "/dev") -> int:
    """Return how many GPUs this machine has if CUDA shows none of them to this process; otherwise 0.

    Args:
        devices: Folder of the driver's device files.
    """
    if device_count():
        return 0
    from pathlib import Path  # which a start with GPUs does not need

    return sum(device.name.removeprefix("nvidia").isdecimal() for device in Path(devices).glob("nvidia*"))
