"""From what a user writes to the devices of a comparison."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ortmulti.errors import DeviceError, InvalidArgument

_ITEM = re.compile(r"(?:(?P<cpu>cpu)|(?:cuda:)?(?P<index>\d+))(?:\*(?P<times>[1-9]\d*))?")


def parse_devices(text: str, cuda_devices: int) -> tuple[str, ...]:
    """The devices that `text` names, one for each session.

    Args:
        text: "all", or a list such as "cpu", "0,1", "cuda:0,cuda:1", "cpu*2" (two sessions on the CPU), "0*2,1".
        cuda_devices: how many CUDA devices there are; without any, "all" is two sessions on the CPU.

    Raises:
        InvalidArgument: `text` is nothing of that.
        DeviceError: it names a CUDA device that is not there.
    """
    if text.strip() == "all":
        return tuple(f"cuda:{index}" for index in range(cuda_devices)) or ("cpu", "cpu")
    devices: list[str] = []
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise InvalidArgument(
                f"{item.strip()!r} is no device; write all, cpu, 0 or cuda:0, several with commas, cpu*2 for two sessions"
            )
        index = match["index"]
        if index is not None and int(index) >= cuda_devices:
            there = f"there are {cuda_devices}, numbered from 0" if cuda_devices else "this machine offers none"
            raise DeviceError(f"CUDA device {index} was asked for, but {there}")
        devices += ["cpu" if index is None else f"cuda:{int(index)}"] * int(match["times"] or 1)
    return tuple(devices)


def parse_counts(text: str) -> tuple[int, ...]:
    """The numbers in a list such as "1,2,4".

    Raises:
        InvalidArgument: there is something else in it, or a number below one.
    """
    try:
        counts = tuple(int(item) for item in text.split(","))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise InvalidArgument(f"{text!r} is no list of numbers of sessions, such as 1,2,4")
    return counts


def device_sets(devices: Sequence[str], counts: Sequence[int] | None) -> tuple[tuple[str, ...], ...]:
    """The devices for each number of sessions: the first ones of `devices`.

    Args:
        devices: all of them.
        counts: numbers of sessions; None means one and all. Of sessions on the CPU alone there can be any number.

    Raises:
        InvalidArgument: more sessions than devices.
    """
    sets = {}
    for count in counts if counts is not None else (1, len(devices)):
        if count > len(devices) and set(devices) != {"cpu"}:
            raise InvalidArgument(f"{count} sessions were asked for on {len(devices)} devices ({describe(devices)})")
        sets[tuple(devices[:count]) + ("cpu",) * (count - len(devices))] = None
    return tuple(sets)


def describe(devices: Sequence[str]) -> str:
    """The devices in short: "cpu x2", "cuda:0-3", "cuda:0, cpu"."""
    indices = [int(device.removeprefix("cuda:")) for device in devices if device.startswith("cuda:")]
    if len(devices) > 1 and len(set(devices)) == 1:
        return f"{devices[0]} x{len(devices)}"
    if len(devices) > 2 and indices == list(range(indices[0], indices[0] + len(devices)) if indices else []):
        return f"cuda:{indices[0]}-{indices[-1]}"
    return ", ".join(devices)
