"""The serial part of each way's creation and its causes, and the best way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ortmulti.bench.diagnose.measured import Measured, devices_text, median, seconds_text

# Below this share nothing is said: a loaded machine alone makes as much.
_LEAST_SHARE = 0.05
_OF_MEMORY = ("read weights", "stage weights", "copy weights", "prepacking")
_OF_DRIVER = ("cuInit", "context")


def serialization(measured: Measured) -> list[dict[str, Any]]:
    """Return the serial part of each way and its causes.

    Args:
        measured: the runs.

    Returns:
        For each way on N > 1 devices: "way", "devices" (N), "ideal" (N), and "speedup" over sequential (None if not
        measured). "serial" is the share of further sessions' creation that does not overlap (None if unknown). "on"
        lists the causes: "what", "share" (of the creation) and "evidence".
    """
    if measured.sessions < 2:
        return []
    return [
        {
            "way": way,
            "devices": measured.sessions,
            "speedup": speedup(measured, way),
            "ideal": float(measured.sessions),
            "serial": serial_share(measured, way),
            "on": list(_on(measured, way)),
        }
        for way in measured.ways
    ]


def speedup(measured: Measured, way: str) -> float | None:
    """Return the sequential way's creation time divided by this one's, on all devices."""
    sequential, own = measured.creation("sequential"), measured.creation(way)
    return sequential / own if sequential and own else None


def serial_share(measured: Measured, way: str) -> float | None:
    """Return the time of a further session, divided by its time in the sequential way; 0 to 1."""
    counts = (1, measured.sessions)
    sequential = [measured.watched_creation("sequential", count) for count in counts]
    own = [measured.watched_creation(way, count) for count in counts]
    if None in sequential or None in own:
        return None
    added, own_added = ((pair[1] or 0.0) - (pair[0] or 0.0) for pair in (sequential, own))
    if added <= 0.1 * (sequential[0] or 0.0):
        return None  # further sessions cost next to nothing
    return min(max(own_added / added, 0.0), 1.0)


def gil_share(measured: Measured, way: str) -> float | None:
    """Return the share of a session's creation during which no other Python thread could run, by this way's library.

    Time in which the heartbeat waited for a core does not count.
    """
    library = "ortmulti" if way in ("native", "shared") else "onnxruntime"
    return median(
        min(max(found["delay"] - found["for_core"], 0.0) / found["creation"], 1.0)
        for found in measured.experiment("gil", library=library)
    )


def driver_seconds(measured: Measured) -> tuple[float, float | None] | None:
    """Return the seconds of cuInit with contexts one by one, and of contexts at once. None without GPUs."""
    one_by_one = measured.experiment("contexts", at_once=False)
    if not one_by_one:
        return None
    floor = median(found["driver_floor"] for found in one_by_one) or 0.0
    return floor, median(found["at_once"] for found in measured.experiment("contexts", at_once=True))


def _on(measured: Measured, way: str) -> Iterator[dict[str, Any]]:
    creation = measured.creation(way)
    if not creation:
        return
    if way == "sequential":
        share = 1 - 1 / measured.sessions
        yield _part("its own order", share, "one session after the other, and nothing else waits meanwhile")
    for part in (_gil(measured, way), _driver(measured, way, creation), _disk(measured, way),
                 _memory(measured, way, creation), _onnxruntime(measured, way, creation)):  # fmt: skip
        if part is not None and part["share"] >= _LEAST_SHARE:
            yield part


def _part(what: str, share: float, evidence: str) -> dict[str, Any]:
    return {"what": what, "share": min(max(share, 0.0), 1.0), "evidence": evidence}


def _gil(measured: Measured, way: str) -> dict[str, Any] | None:
    if way not in ("threads", "native", "shared"):
        return None  # one thread, or a GIL for each process
    share = gil_share(measured, way)
    if share is None:
        return None
    holder = "ortmulti" if way in ("native", "shared") else measured.release
    return _part("gil", share, f"{holder} holds the GIL for {share:.0%} of a session's creation (heartbeat)")


def _driver(measured: Measured, way: str, creation: float) -> dict[str, Any] | None:
    driver = driver_seconds(measured)
    if driver is None:
        return None
    floor, at_once = driver
    seconds = measured.cause(way, lambda name: name in _OF_DRIVER) or floor
    evidence = f"cuInit and the contexts take {seconds_text(floor)} with nothing else running"
    if at_once is not None:
        contexts = median(sum(found["contexts"]) for found in measured.experiment("contexts", at_once=False)) or 0.0
        evidence += f"; the contexts one by one {seconds_text(contexts)}, all at once {seconds_text(at_once)}"
    return _part("driver", seconds / creation, evidence)


def _disk(measured: Measured, way: str) -> dict[str, Any] | None:
    usual = measured.document["settings"]["ways"][0]
    if way != usual:
        return None  # it was measured with that one
    warm, cold = measured.watched_creation(way, 1), measured.watched_creation(way, 1, "cold")
    if not warm or not cold:
        return None
    evidence = f"one session takes {seconds_text(cold)} from a cold page cache and {seconds_text(warm)} from a warm one"
    return _part("disk", (cold - warm) / cold, evidence)


def _memory(measured: Measured, way: str, creation: float) -> dict[str, Any] | None:
    found = measured.experiment("memory")
    if not found:
        return None
    one, together = (median(rates[key] for rates in found) or 0.0 for key in ("one", "all"))
    if not one:
        return None
    missing = 1 - together / one / measured.sessions
    moving = measured.cause(way, lambda name: name in _OF_MEMORY)
    evidence = (
        f"{measured.sessions} threads copy {together / 1e9:.1f} GB/s together and one {one / 1e9:.1f} GB/s; reading, "
        f"copying and packing weights take {seconds_text(moving)} of the creation"
    )
    return _part("memory", missing * min(moving / creation, 1.0), evidence)


def _onnxruntime(measured: Measured, way: str, creation: float) -> dict[str, Any] | None:
    if way == "sequential":
        return None
    waiting = measured.cause(way, lambda name: name == "wait for another session")
    alone, together = measured.watched_creation("native", 1), measured.watched_creation("native")
    growth = f"; native creates {measured.sessions} sessions in {together / alone:.1f} times the time of one" if (
        alone and together
    ) else ""  # fmt: skip
    evidence = f"its sessions' threads wait {seconds_text(waiting)} for each other{growth}"
    return _part("onnxruntime", waiting / creation, evidence)


# Ways that differ by less are called equal, whatever the intervals say.
_EQUAL = 0.03


def prediction(measured: Measured) -> dict[str, Any] | None:
    """Predict which way has all sessions created first.

    Args:
        measured: the runs.

    Returns:
        "best"; "seconds" by way until all sessions are created, with the start of worker processes; "equal", the ways
        that may be as fast; "why". None if nothing was measured on all devices.
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
