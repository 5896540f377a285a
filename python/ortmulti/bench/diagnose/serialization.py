"""The serial part of each way's creation and its causes, and the best way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ortmulti.bench.diagnose.measured import Measured, median, seconds_text
from ortmulti.bench.measure.devices import describe

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
            "on": _on(measured, way),
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


class DriverSeconds(NamedTuple):
    """Seconds of the driver's start with nothing else running: cuInit with the contexts one by one, these contexts
    alone, and the contexts at once (None for a single one).
    """

    floor: float
    one_by_one: float
    at_once: float | None


def driver_seconds(measured: Measured) -> DriverSeconds | None:
    """Return the medians of the driver's experiments. None without GPUs."""
    found = measured.experiment("contexts", at_once=False)
    if not found:
        return None
    return DriverSeconds(
        median(one["driver_floor"] for one in found) or 0.0,
        median(sum(one["contexts"]) for one in found) or 0.0,
        median(one["at_once"] for one in measured.experiment("contexts", at_once=True)),
    )


def _on(measured: Measured, way: str) -> list[dict[str, Any]]:
    """Return the causes that hold up a way's creation for a share that is worth a word."""
    creation = measured.creation(way)
    if not creation:
        return []
    return [
        {"what": what, "share": min(share, 1.0), "evidence": evidence}
        for what, share, evidence in _shares(measured, way, creation)
        if share >= _LEAST_SHARE
    ]


def _shares(measured: Measured, way: str, creation: float) -> Iterator[tuple[str, float, str]]:
    """Yield each cause, its share of a way's creation, and the sources of this figure."""
    sessions = measured.sessions
    alone, together = measured.watched_creation("native", 1), measured.watched_creation("native")
    if way == "sequential":
        share = 1 - 1 / sessions
        yield "its own order", share, "one session after the other, and nothing else waits meanwhile"
    held = gil_share(measured, way)
    if way in ("threads", "native", "shared") and held is not None:  # others: one thread, or a GIL for each process
        holder = measured.release if way == "threads" else "ortmulti"
        yield "gil", held, f"{holder} holds the GIL for {held:.0%} of a session's creation (heartbeat)"
    if driver := driver_seconds(measured):
        seconds = measured.cause(way, lambda name: name in _OF_DRIVER) or driver.floor
        evidence = f"cuInit and the contexts take {seconds_text(driver.floor)} with nothing else running"
        if driver.at_once is not None:
            evidence += f"; the contexts one by one {seconds_text(driver.one_by_one)}"
            evidence += f", all at once {seconds_text(driver.at_once)}"
        yield "driver", seconds / creation, evidence
    warm, cold = measured.watched_creation(way, 1), measured.watched_creation(way, 1, "cold")
    if warm and cold:  # measured with the first way alone
        evidence = f"{seconds_text(cold)} from a cold page cache and {seconds_text(warm)} from a warm one"
        yield "disk", (cold - warm) / cold, f"one session takes {evidence}"
    found = measured.experiment("memory")
    one, all_at_once = (median(rates[key] for rates in found) or 0.0 for key in ("one", "all"))
    if one:
        moving = measured.cause(way, lambda name: name in _OF_MEMORY)
        evidence = (
            f"{sessions} threads copy {all_at_once / 1e9:.1f} GB/s together and one {one / 1e9:.1f} GB/s; reading, "
            f"copying and packing weights take {seconds_text(moving)} of the creation"
        )
        yield "memory", (1 - all_at_once / one / sessions) * min(moving / creation, 1.0), evidence
    if way != "sequential":
        waiting = measured.cause(way, lambda name: name == "wait for another session")
        evidence = f"its sessions' threads wait {seconds_text(waiting)} for each other"
        if alone and together:
            evidence += f"; native creates {sessions} sessions in {together / alone:.1f} times the time of one"
        yield "onnxruntime", waiting / creation, evidence


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
    equal = [
        way
        for way in seconds
        if way != best
        and (interval := measured.creation_interval(way)) is not None
        and (interval.median <= seconds[best] * (1 + _EQUAL) or interval.low <= seconds[best])
    ]
    others = sorted((way for way in seconds if way != best), key=lambda way: seconds[way])
    text = f"{seconds_text(seconds[best])} to create the sessions on {describe(measured.devices)}"
    if others:
        text += f", with {others[0]}, the next, {seconds_text(seconds[others[0]])}"
    text += f": {_reason(measured, best)}"
    if equal:
        text += f"; {' and '.join(equal)} may be as fast, by the spread of the measurements"
    return {"best": best, "seconds": seconds, "equal": equal, "why": text}


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
