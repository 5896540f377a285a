"""DLPack capsules of GPUs' memory, read in a process whose driver is fake_driver.c."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

from tests.support.dlpack import Tensor

driver = ctypes.CDLL("libcuda.so.1")

_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_TAKEN = b"used_dltensor"  # the capsule keeps the pointer


def tensor_in(capsule: object) -> Tensor:
    """The tensor of a capsule, valid as long as this lives."""
    return Tensor.from_address(_python.PyCapsule_GetPointer(capsule, b"dltensor"))


def take(capsule: object) -> Tensor:
    """As who takes the capsule: its tensor is to be deleted by the caller."""
    tensor = tensor_in(capsule)
    _python.PyCapsule_SetName(capsule, _TAKEN)
    return tensor


def live() -> int:
    """Allocations that were not freed."""
    gc.collect()
    return int(driver.live())


def failure(call: Callable[..., object], *arguments: object) -> str | None:
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
