"""The CUDA driver's start, made step by step where a session would first need it, so that each step can be timed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from ortmulti.errors import DeviceError

Span = Callable[[str, str, str], AbstractContextManager[None]]
"""Called with a cause, a name and a device: a span around what is done."""


class Driver:
    """cuInit and the devices' primary contexts, each once in this process; what is made stays.

    ONNX Runtime's CUDA provider starts both through CUDA's runtime library at the same place, and finds them there.
    """

    def __init__(self, span: Span, hold_gil: bool) -> None:
        """
        Args:
            span: makes the spans.
            hold_gil: whether other Python threads have to wait meanwhile, as they do in releases of onnxruntime that
                hold the GIL while they create a session.
        """
        self._span = span
        self._library_type = ctypes.PyDLL if hold_gil else ctypes.CDLL
        self._library: ctypes.CDLL | None = None
        self._begun = threading.Lock()
        self._contexts: set[int] = set()

    def start(self, index: int) -> None:
        """Makes the context of a device, and calls cuInit before the first one.

        Raises:
            DeviceError: there is no driver, or it refuses.
        """
        with self._begun:  # held briefly; who comes second waits for the driver's own lock, as it would without us
            if index in self._contexts:
                return
            self._contexts.add(index)
            opened = self._library
            if opened is None:
                opened = self._library = self._open()
        device = f"cuda:{index}"
        with self._span("cuInit", "cuInit", ""):  # by every thread: the later ones wait in it for the first
            self._check(opened.cuInit(0), "cuInit")
        with self._span("context", "context", device):
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            self._check(opened.cuDeviceGet(ctypes.byref(handle), index), f"{device}: cuDeviceGet")
            self._check(opened.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"{device}: making its context")

    def _open(self) -> ctypes.CDLL:
        with self._span("libraries", "open the CUDA driver", ""):
            try:
                return self._library_type("libcuda.so.1")
            except OSError as error:
                raise DeviceError(f"the CUDA driver cannot be opened: {error}") from error

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code:
            raise DeviceError(f"{what} failed with CUDA's error {code}")
