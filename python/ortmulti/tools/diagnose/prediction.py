"""Which way is best here, and why."""

from __future__ import annotations

from typing import Any

from .measured import Measured, devices_text, seconds_text
from .serialization import gil_share

# Ways that differ by less are called equal, whatever the intervals say.
_EQUAL = 0.03


def prediction(measured: Measured) -> dict[str, Any] | None:
    """The way whose sessions are all created first.

    Args:
        measured: the runs.

    Returns:
        "best"; "seconds" by way, from when the process could begin until all sessions are created, worker processes'
        start included; "equal", the ways that may be as fast; "why". None where nothing was measured on all devices.
    """
    seconds = {way: found for way in measured.ways if (found := measured.creation(way)) is not None}
    if not seconds:
        return None
    best = min(seconds, key=lambda way: seconds[way])
    equal = [way for way in seconds if way != best and _may_be_equal(measured, best, way)]
    return {"best": best, "seconds": seconds, "equal": equal, "why": _why(measured, best, equal, seconds)}


def _may_be_equal(measured: Measured, best: str, other: str) -> bool:
    first, second = measured.creation_interval(best), measured.creation_interval(other)
    if first is None or second is None:
        return False
    return second.median <= first.median * (1 + _EQUAL) or second.low <= first.median


def _why(measured: Measured, best: str, equal: list[str], seconds: dict[str, float]) -> str:
    where = devices_text(measured.devices)
    others = sorted((way for way in seconds if way != best), key=lambda way: seconds[way])
    text = f"{seconds_text(seconds[best])} to create the sessions on {where}"
    if others:
        text += f", with {others[0]}, the next, {seconds_text(seconds[others[0]])}"
    text += f": {_reason(measured, best)}"
    if equal:
        text += f"; {' and '.join(equal)} may be as fast, by the spread of the measurements"
    return text


def _reason(measured: Measured, best: str) -> str:
    held = gil_share(measured, "threads")
    holds = held is not None and held >= 0.3
    if best == "shared":
        if not measured.on_gpu:
            return "sessions on the CPU are handles to one, so that the model is loaded once"
        return "weights are read once, while the driver starts, and the other devices copy them from the first"
    if best == "native":
        return "each session has a thread that does not need the GIL, and there is nothing to share"
    if best == "threads":
        share = "" if held is None else f" ({held:.0%} of creation)"
        return f"{measured.release} hardly holds the GIL{share}, and no process has to be started"
    if best == "processes":
        held_text = f"{measured.release} holds the GIL for {held:.0%} of creation, and " if holds else ""
        return f"{held_text}creation takes longer than starting the processes"
    if measured.sessions == 1:
        return "there is one session, and nothing that could be done at once"
    return "sessions are created in so little time that doing it at once costs more than it saves"
