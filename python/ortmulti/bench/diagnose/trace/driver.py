"""The CUDA driver's start, call by call: what ONNX Runtime's CUDA provider does first, and finds done after these."""

from __future__ import annotations

import ctypes

from ortmulti.errors import DeviceError


def open_driver(*, hold_gil: bool) -> ctypes.CDLL:
    """Open the driver's library; `hold_gil`: whether other Python threads wait during its calls.

    Raises:
        DeviceError: there is no driver; or, in the functions below, it refuses.
    """
    try:
        return (ctypes.PyDLL if hold_gil else ctypes.CDLL)("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the CUDA driver cannot be opened: {error}") from error


def init(driver: ctypes.CDLL) -> None:
    """Call cuInit."""
    _check(driver.cuInit(0), "cuInit")


def make_context(driver: ctypes.CDLL, device: str) -> None:
    """Make the primary context of a device, "cuda:<index>", which is kept until the process ends."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    index = int(device.removeprefix("cuda:"))
    _check(driver.cuDeviceGet(ctypes.byref(handle), index), f"{device}: cuDeviceGet")
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"{device}: making its context")


def _check(code: int, what: str) -> None:
    if code:
        raise DeviceError(f"{what} failed with CUDA's error {code}")
