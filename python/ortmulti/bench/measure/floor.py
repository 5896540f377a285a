"""The driver floor: how long cuInit and the contexts take by themselves; runs in a process of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

from ortmulti import _core


def cuda_devices(devices: Sequence[str]) -> list[str]:
    """Return the GPUs among `devices`, each once, in their order."""
    return [device for device in dict.fromkeys(devices) if device.startswith("cuda:")]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Start the driver and make one context after the other, in a process that opens nothing else.

    libcuda is opened before the clock starts, because every use of a GPU needs it.

    Args:
        spec: "devices": the GPUs, in the order of their contexts.

    Returns:
        "driver_floor" in seconds, and its parts: "cuInit", and "contexts" with one figure for each device.
    """
    _core.cuda_driver_version()
    times = [time.perf_counter()]
    _core.cuda_device_count()
    times.append(time.perf_counter())
    for device in cuda_devices(spec["devices"]):
        _core.cuda_memory(_core.parse_device(device)[1])
        times.append(time.perf_counter())
    parts = [end - begin for begin, end in itertools.pairwise(times)]
    return {"driver_floor": times[-1] - times[0], "cuInit": parts[0], "contexts": parts[1:]}
