"""Parses the devices that a user names for a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from ortmulti import errors
from ortmulti.devices import device as devices
from ortmulti.errors import InvalidArgument


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the devices that `text` names, one for each session.

    Args:
        text: "all", or a list such as "cpu", "0,1", "cuda:0,cuda:1", "cpu*2" (two sessions on the CPU), "0*2,1". "all"
            on a machine without GPUs is two sessions on the CPU.

    Raises:
        InvalidArgument: `text` has another form.
        DeviceError: a device does not exist.
        NotImplemented: as `check_measurable`.
    """
    names = "all" if text.strip() == "all" else repeated(text)
    if names != "all":
        check_measurable(devices.name_devices(names))
    found = tuple(str(device) for device in devices.parse_devices(names))
    return ("cpu", "cpu") if names == "all" and found == ("cpu",) else found


def check_measurable(named: Sequence[devices.Device] | None) -> None:
    """Raise `NotImplemented` for a plug-in's device: comparisons, diagnoses and tunings do not know them.

    Args:
        named: as `name_devices` returns them.
    """
    for device in named or ():
        if device.is_plugin:
            raise errors.NotImplemented(
                f"only the CPU and GPUs are measured, not the plug-in's device {device}: use `load`"
            )


def repeated(text: str) -> list[str]:
    """Return the items of a list of devices, and repeat those with a star. The names are not checked.

    Raises:
        InvalidArgument: a star is not followed by a number.
    """
    names: list[str] = []
    for item in map(str.strip, text.split(",")):
        name, star, times = item.partition("*")
        if star and (not times.isdecimal() or int(times) < 1):
            raise InvalidArgument(f"{item!r}: after the * comes the number of sessions, as in cpu*2")
        names += [name] * int(times or 1)
    return names


def parse_counts(text: str, what: str = "numbers of sessions, such as 1,2,4") -> tuple[int, ...]:
    """Return the numbers in a list such as "1,2,4"; `what` says in an error what they are.

    Raises:
        InvalidArgument: an item is not a number, or below one.
    """
    try:
        counts = tuple(int(item) for item in text.split(","))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise InvalidArgument(f"{text!r} is not a list of {what}")
    return counts


def device_sets(available: Sequence[str], counts: Sequence[int] | None) -> tuple[tuple[str, ...], ...]:
    """Return the devices for each number of sessions: the first ones of `devices`.

    Args:
        available: all of them.
        counts: numbers of sessions; None: one and all. Only sessions on the CPU can have any number.

    Raises:
        InvalidArgument: more sessions than devices.
    """
    sets: dict[tuple[str, ...], None] = {}
    for count in counts if counts is not None else (1, len(available)):
        if count > len(available) and set(available) != {"cpu"}:
            raise InvalidArgument(f"{count} sessions need {count} devices, not {len(available)}: {describe(available)}")
        sets[tuple(available[:count]) + ("cpu",) * (count - len(available))] = None
    return tuple(sets)


def describe(names: Sequence[str]) -> str:
    """Return the devices in short: "cpu x2", "cuda:0-3", "cuda:0, cpu"."""
    if len(names) > 1 and len(set(names)) == 1:
        return f"{names[0]} x{len(names)}"
    if len(names) > 2 and names[0].startswith("cuda:"):
        first = int(names[0].removeprefix("cuda:"))
        if list(names) == [f"cuda:{first + step}" for step in range(len(names))]:
            return f"cuda:{first}-{first + len(names) - 1}"
    return ", ".join(names)
