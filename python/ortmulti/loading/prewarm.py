"""The start of CUDA in the background, and a hint about GPUs that slow it down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ortmulti import _core
from ortmulti._runtime import native
from ortmulti.errors import Error
from ortmulti.loading import early_start

# Other modules are imported while the driver starts.
if TYPE_CHECKING:
    from ortmulti.create.model import Model
    from ortmulti.devices.device import Device

__all__ = ["hint_at_unused_gpus", "prewarm"]


def prewarm(
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    *,
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model | None = None,
) -> None:
    """Start CUDA in the background: the driver, these devices' contexts in this order, and the CUDA libraries.

    Call it as early as possible, for example before importing other packages. `load` waits for a start that is under
    way, and starts CUDA itself otherwise. Without NVIDIA hardware, and for the CPU, this does nothing.

    It opens ONNX Runtime, begins the start and returns. Errors in the background are raised by the `load` that needs
    the device. So is the error for a device that does not exist: only the started driver knows its devices.

    Args:
        devices: The devices that `load` will get, in the same form.
        model: A model that `load` will get. Its first run needs kernels and CUDA libraries: they are loaded too, in
            threads that end when that is done.

    Raises:
        InvalidArgument, InvalidType: A device has an unknown name or type.
        NoSuchFile: There is no such model.
    """
    from ortmulti.create.model import Model

    checked = None if model is None else Model.of(model)
    early_start.begin_driver_unchecked(devices)
    from ortmulti.devices.device import name_devices

    named = name_devices(devices)
    if early_start.begin_driver(named):
        early_start.open_libraries()
        if checked is not None:
            with contextlib.suppress(Error):  # the load of the model raises the error
                _core.begin_preload(early_start.indices(named), _core.index_model(checked.graph))


_lock = native.Lock()
_said = False


def hint_at_unused_gpus(used: Iterable[Device], visible: int | None = None) -> None:
    """Log once in a process that many unused GPUs make its start slower.

    Args:
        used: the devices of a load.
        visible: number of GPUs that the process sees; default: asked from the started driver.
    """
    global _said
    from ortmulti._runtime import log

    indices = sorted({device.index for device in used if device.kind == "cuda"})
    if not indices or not log.logger().isEnabledFor(log.INFO):
        return
    count = _core.cuda_device_count() if visible is None else visible
    if count < 4 or count < 2 * len(indices):
        return
    with _lock:
        if _said:
            return
        _said = True
    log.logger().info(
        "this process sees %d GPUs and uses %d of them. The CUDA driver takes longer to start with each GPU: set "
        "CUDA_VISIBLE_DEVICES=%s to show only these to the process, as cuda:0 and so on",
        count,
        len(indices),
        _visible_devices(indices, os.environ.get("CUDA_VISIBLE_DEVICES")),
    )


def _visible_devices(indices: Iterable[int], current: str | None) -> str:
    # The numbers are the variable's; without the variable they are all of CUDA's.
    names = [] if current is None else [name.strip() for name in current.split(",")]
    return ",".join(names[index] if index < len(names) else str(index) for index in indices)
