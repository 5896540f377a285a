"""Which devices a call means."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ortmulti import _core
from ortmulti._runtime import startup as _startup
from ortmulti.errors import DeviceError, InvalidArgument, InvalidType

__all__ = ["Device", "get_devices", "parse_devices"]


@dataclass(frozen=True, order=True)
class Device:
    """The CPU, a GPU under CUDA's number in this process, or a device of a plug-in's provider.

    Attributes:
        kind: ``"cpu"``, ``"cuda"``, or a plug-in's provider and type of hardware: ``"openvino:GPU"``.
        index: CUDA's number; 0 for the CPU. For plug-ins the number among the devices of the same ``kind``.
    """

    kind: str
    index: int = 0

    def __str__(self) -> str:
        if self.kind == "cuda":
            return f"cuda:{self.index}"
        return f"{self.kind}.{self.index}" if self.index else self.kind

    @property
    def is_plugin(self) -> bool:
        """Whether it is a device of a plug-in's provider."""
        return ":" in self.kind


def _parse_one(device: object) -> Device:
    if isinstance(device, Device):
        return device
    if isinstance(device, bool) or not isinstance(device, (str, int)):
        raise InvalidType(f"a device is 'cpu', 'cuda:N', N or 'openvino:CPU' of a plug-in, not {device!r}")
    if isinstance(device, int):
        if device < 0:
            raise InvalidArgument(f"unknown device {device}: the number of a GPU is 0 or more")
        return Device("cuda", device)
    if device.isdecimal():
        return Device("cuda", int(device))
    try:
        kind, index = _core.parse_device(device)
    except InvalidArgument as error:
        from ortmulti.devices import plugins  # few programs need it

        raise InvalidArgument(f"{error}{plugins.did_you_mean(device)}") from None
    return Device(kind, index)


def get_devices() -> list[Device]:
    """List the devices that this process can use without plug-ins: every GPU, then the CPU.

    `get_ep_devices` lists those of plug-ins. This starts CUDA. You can give each device to `load`. ``str(device)`` is
    its name, such as ``"cuda:0"``.

    Raises:
        DeviceError: The machine has NVIDIA hardware, but its driver does not work.
    """
    return [*(Device("cuda", index) for index in range(_startup.device_count())), Device("cpu")]


def parse_devices(devices: str | int | Device | Iterable[str | int | Device]) -> list[Device]:
    """Return the devices that a ``devices`` argument means, and check that they exist.

    Args:
        devices: ``"all"``: every GPU that this process sees, or the CPU on a machine without NVIDIA hardware.
            Otherwise a device, or an iterable of devices: ``"cpu"``, ``"cuda"`` (the first GPU), ``"cuda:N"``, N, or
            a plug-in's, such as ``"openvino:CPU"`` or ``"openvino:GPU.1"`` (docs/how-to/plugins.md). A device may be
            named more than once.

    Returns:
        The devices in the order given.

    Raises:
        InvalidArgument: No device was given, or an unknown name.
        DeviceError: A device does not exist, or a GPU's driver does not work.
        Error: A plug-in cannot be registered, as `register_execution_provider_library`.

    Warns:
        RuntimeWarning: ``"all"`` means the CPU because ``CUDA_VISIBLE_DEVICES`` hides all GPUs of the machine.
    """
    named = name_devices(devices)
    if named is None:
        count = _startup.device_count()
        if hidden := _startup.hidden_gpus():
            _warn_of_hidden_gpus(hidden)
        return [Device("cuda", index) for index in range(count)] if count else [Device("cpu")]
    check_devices_exist(named)
    return named


def _warn_of_hidden_gpus(count: int) -> None:
    import os
    import warnings

    warnings.warn(
        f"this machine has {count} NVIDIA GPU{'s' * (count > 1)}, and CUDA_VISIBLE_DEVICES="
        f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r} hides all of them: devices='all' means the CPU. Change the "
        "variable, or name devices='cpu'",
        RuntimeWarning,
        stacklevel=3,
    )


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


def check_devices_exist(devices: Collection[Device]) -> None:
    """Raise `DeviceError` for the first of ``devices`` that this process does not see. It registers plug-ins."""
    for device in dict.fromkeys(devices):
        if device.is_plugin:
            from ortmulti.devices import plugins

            plugins.find(str(device))
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
