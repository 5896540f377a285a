"""A word on GPUs that a process sees and does not use."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable

from ortmulti import _core
from ortmulti.devices import Device

LOGGER = logging.getLogger("ortmulti")

_lock = threading.Lock()
_said = False


def hint(used: Iterable[Device], visible: int | None = None) -> None:
    """Says once in a process that its start takes longer by the GPUs that it does not use, if these are many.

    Args:
        used: the devices of a load.
        visible: how many GPUs the process sees; default: the driver is asked, which has been started.
    """
    global _said
    indices = sorted({device.index for device in used if device.kind == "cuda"})
    if not indices or not LOGGER.isEnabledFor(logging.INFO):
        return
    count = _core.cuda_device_count() if visible is None else visible
    if count < 4 or count < 2 * len(indices):
        return
    with _lock:
        if _said:
            return
        _said = True
    LOGGER.info(
        "this process sees %d GPUs and uses %d of them; the CUDA driver takes longer to start with each: with "
        "CUDA_VISIBLE_DEVICES=%s in its environment it would see those alone, from cuda:0 on",
        count,
        len(indices),
        _visible_devices(indices, os.environ.get("CUDA_VISIBLE_DEVICES")),
    )


def _visible_devices(indices: Iterable[int], current: str | None) -> str:
    # The numbers are those that the variable has left; without it they are what it would take.
    names = [] if current is None else [name.strip() for name in current.split(",")]
    return ",".join(names[index] if index < len(names) else str(index) for index in indices)
