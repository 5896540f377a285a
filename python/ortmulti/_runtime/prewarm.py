"""CUDA started in the background."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from ortmulti import _core
from ortmulti._runtime import cuda, startup
from ortmulti.devices import Device, name_devices
from ortmulti.errors import LibraryError

__all__ = ["prewarm"]


def prewarm(devices: str | int | Device | Iterable[str | int | Device] = "all") -> None:
    """Starts CUDA in the background: the driver, these devices' contexts in this order, and the CUDA libraries.

    Call it as early as the program can, such as before it imports other packages; `load` joins what is under way, and
    begins with the same where nothing is. Without NVIDIA hardware, and for the CPU, it does nothing.

    It returns when that is under way, after opening ONNX Runtime. Whether a device exists is not known before the
    driver has started, so that devices that do not exist, and whatever goes wrong in the background, are reported by
    the `load` that needs them.

    Args:
        devices: As for `load`: those that it will be given.

    Raises:
        InvalidArgument, InvalidType: Devices that cannot be understood.
    """
    if begin_driver(name_devices(devices)):
        open_libraries()


def begin_driver(named: Sequence[Device] | None) -> bool:
    """Starts the driver and these devices' contexts in the background, for what `name_devices` gives.

    Returns:
        Whether there is anything to start; then `open_libraries` is for what else the devices need.
    """
    gpus = None if named is None else list(dict.fromkeys(device.index for device in named if device.kind == "cuda"))
    if gpus == [] or _core.cuda_driver_version() is None:
        return False
    startup.close_at_exit()
    _core.prewarm(gpus)
    return True


def open_libraries() -> None:
    """Opens ONNX Runtime, and in the background the CUDA libraries."""
    # The CUDA provider's library can be opened in the background only where ONNX Runtime is there.
    with contextlib.suppress(LibraryError):  # whoever needs it says so
        startup.ensure_open()
    cuda.begin_opening_libraries()
