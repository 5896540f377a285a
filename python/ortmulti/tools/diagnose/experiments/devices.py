"""Which devices there are, asked in a process of its own: asking starts the CUDA driver, whose start is measured."""

from __future__ import annotations

from typing import Any

from ortmulti import _core
from ortmulti.devices import check_devices_exist, name_devices
from ortmulti.tools.measure.devices import parse_devices


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Finds the devices.

    Args:
        spec: "devices": names, or None for all.

    Returns:
        "devices": names, one for each session. "visible": how many GPUs this process sees, None where no session is on
        one. "gpus": for each GPU among the devices its "device", "uuid" and "pci_bus_id".
    """
    if spec["devices"] is None:
        names = parse_devices("all")
    else:
        named = name_devices(spec["devices"]) or []
        check_devices_exist(named)
        names = tuple(map(str, named))
    used = {int(name.removeprefix("cuda:")) for name in names if name.startswith("cuda:")}
    gpus = [device for device in _core.cuda_devices() if device.index in used] if used else []
    return {
        "devices": list(names),
        "visible": _core.cuda_device_count() if used else None,
        "gpus": [{"device": f"cuda:{gpu.index}", "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id} for gpu in gpus],
    }
