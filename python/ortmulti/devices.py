"""Which devices a call means."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ortmulti import _core
from ortmulti._runtime import startup as _startup
from ortmulti.errors import DeviceError, InvalidArgument, InvalidType

__all__ = ["Device", "get_devices", "parse_devices"]


@dataclass(frozen=True, order=True)
class Device:
    """The CPU, or a GPU under CUDA's number in this process.

    Attributes:
        kind: ``"cpu"`` or ``"cuda"``.
        index: CUDA's number; 0 for the CPU.
    """

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"


def _parse_one(device: object) -> Device:
    if isinstance(device, Device):
        return device
    if isinstance(device, bool) or not isinstance(device, (str, int)):
        raise InvalidType(f"a device is 'cpu', 'cuda:N' or N, not {device!r}")
    if isinstance(device, int):
        if device < 0:
            raise InvalidArgument(f"unknown device {device}: the number of a GPU is 0 or more")
        return Device("cuda", device)
    if device.isdecimal():
        return Device("cuda", int(device))
    kind, index = _core.parse_device(device)
    return Device(kind, index)


def get_devices() -> list[Device]:
    """List the devices that this process can use: every GPU, then the CPU.

    This starts CUDA. You can give each device to `load`. ``str(device)`` is its name, such as ``"cuda:0"``.

    Raises:
        DeviceError: The machine has NVIDIA hardware, but its driver does not work.
    """
    return [*(Device("cuda", index) for index in range(_startup.device_count())), Device("cpu")]


def parse_devices(devices: str | int | Device | Iterable[str | int | Device]) -> list[Device]:
    """Return the devices that a ``devices`` argument means, and check that they exist.

    Args:
        devices: ``"all"``: every GPU that this process sees, or the CPU on a machine without NVIDIA hardware.
            Otherwise a device, or an iterable of devices: ``"cpu"``, ``"cuda"`` (the first GPU), ``"cuda:N"``, N. A
            device may be named more than once.

    Returns:
        The devices in the order given.

    Raises:
        InvalidArgument: No device was given, or an unknown name.
        DeviceError: A GPU does not exist, or its driver does not work.
    """
    named = name_devices(devices)
    if named is None:
        count = _startup.device_count()
        return [Device("cuda", index) for index in range(count)] if count else [Device("cpu")]
    check_devices_exist(named)
    return named


def name_devices(devices: str | int | Device | Iterable[str | int | Device]) -> list[Device] | None:
    """Same as `parse_devices`, without CUDA and so without knowing whether they exist; None for ``"all"``."""
    if isinstance(devices, str) and devices == "all":
        return None
    if isinstance(devices, (str, int, Device)):
        parsed = [_parse_one(devices)]
    elif isinstance(devices, Iterable):
        parsed = [_parse_one(device) for device in devices]
    else:
        raise InvalidType(f"devices is 'all', a device or an iterable of devices, not {devices!r}")
    if not parsed:
        raise InvalidArgument("devices is empty: name at least one, such as 'cpu', 'cuda:0' or 'all'")
    return parsed


def check_devices_exist(devices: Iterable[Device]) -> None:
    """Raise `DeviceError` for the first GPU among ``devices`` that this process does not see."""
    cuda = [device for device in devices if device.kind == "cuda"]
    if not cuda:
        return
    count = _startup.device_count()
    for device in cuda:
        if device.index >= count:
            if count:
                seen = "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
                raise DeviceError(f"there is no {device}: this process sees {seen}; name one, or 'all'")
            reason = f" ({_core.cuda_driver_problem()})" if _core.cuda_driver_version() is None else ""
            raise DeviceError(
                f"there is no {device}: this process sees no CUDA device{reason}; use devices='cpu', or 'all' for the "
                "GPUs or else the CPU"
            )
