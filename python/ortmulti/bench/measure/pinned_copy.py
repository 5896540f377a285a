"""Copies from pinned memory to a GPU, by the driver alone: as fast as anything can get there."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from ortmulti.errors import DeviceError

BUFFER_BYTES = 256 << 20
TARGET_BYTES = 1 << 30


class PinnedCopy:
    """Copies one pinned buffer to a GPU, over and over."""

    def __init__(self, device: int) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._buffer, self._target = ctypes.c_void_p(), ctypes.c_uint64()
        self._stream = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self._call("cuCtxSetCurrent", self._context)
        size, portable = ctypes.c_size_t(BUFFER_BYTES), ctypes.c_uint(1)
        self._call("cuMemHostAlloc", ctypes.byref(self._buffer), size, portable)
        ctypes.memset(self._buffer, 1, BUFFER_BYTES)
        self._call("cuMemAlloc_v2", ctypes.byref(self._target), ctypes.c_size_t(TARGET_BYTES))
        self._call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(1))  # waits for no other stream

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise DeviceError(f"{name} failed with CUDA's error {code}: is other memory of the GPU free?")

    def seconds(self, size: int) -> float:
        """Return how long it takes to copy `size` bytes: whole buffers, or a part of one."""
        self._call("cuCtxSetCurrent", self._context)
        begin = time.perf_counter()
        for done in range(0, size, BUFFER_BYTES):
            target = ctypes.c_uint64(self._target.value + done % TARGET_BYTES)
            part = ctypes.c_size_t(min(BUFFER_BYTES, size - done))
            self._call("cuMemcpyHtoDAsync_v2", target, self._buffer, part, self._stream)
        self._call("cuStreamSynchronize", self._stream)
        return time.perf_counter() - begin

    def close(self) -> None:
        """Free the memory."""
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuStreamDestroy_v2", self._stream)
        self._call("cuMemFree_v2", self._target)
        self._call("cuMemFreeHost", self._buffer)
