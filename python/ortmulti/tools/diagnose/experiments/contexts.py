"""How long the CUDA driver takes for the contexts of several GPUs when all are asked for at once.

ortmulti's core makes contexts one after another, so that the driver is asked directly here.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from ortmulti.errors import DeviceError


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Starts the driver, and then makes all contexts by a thread each.

    Args:
        spec: "devices": the GPUs, "cuda:<index>".

    Returns:
        Seconds: "cuInit"; "at_once", from the first context's begin to the last one's end; "contexts", each one's own.

    Raises:
        DeviceError: the driver cannot be opened, or refuses.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the CUDA driver cannot be opened: {error}") from error
    begin = time.perf_counter()
    _check(driver.cuInit(0), "cuInit")
    ready = time.perf_counter()
    indices = [int(device.removeprefix("cuda:")) for device in spec["devices"]]
    spans: dict[int, tuple[float, float]] = {}
    failed: list[DeviceError] = []
    gate = threading.Barrier(len(indices))
    threads = [threading.Thread(target=_make, args=(driver, index, gate, spans, failed)) for index in indices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return {
        "cuInit": ready - begin,
        "at_once": max(end for _, end in spans.values()) - min(start for start, _ in spans.values()),
        "contexts": [end - start for start, end in (spans[index] for index in indices)],
    }


def _make(
    driver: Any, index: int, gate: threading.Barrier, spans: dict[int, tuple[float, float]], failed: list[DeviceError]
) -> None:
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    gate.wait()
    begin = time.perf_counter()
    try:
        _check(driver.cuDeviceGet(ctypes.byref(handle), index), f"cuDeviceGet of cuda:{index}")
        retain: Callable[..., int] = driver.cuDevicePrimaryCtxRetain
        _check(retain(ctypes.byref(context), handle), f"the context of cuda:{index}")
    except DeviceError as error:
        failed.append(error)
    spans[index] = (begin, time.perf_counter())


def _check(code: int, what: str) -> None:
    if code:
        raise DeviceError(f"the CUDA driver refused: {what} failed with error {code}")
