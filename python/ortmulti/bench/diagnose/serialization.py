"""The serial part of each way's creation and its causes, and the best way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ortmulti.bench.diagnose.measured import Measured, median, seconds_text
from ortmulti.bench.measure.devices import describe

# Below this share nothing is said: a loaded machine alone makes as much.
_LEAST_SHARE = 0.05
# Ways that differ by less are called equal, whatever the intervals say.
_EQUAL = 0.03


def serialization(measured: Measured) -> list[dict[str, Any]]:
    """Return the serial part of each way on N > 1 devices, and its causes.

    Returns:
        For each way "way", "devices" (N), "ideal" (N), and "speedup" over sequential (None if not measured). "serial"
        is the share of further sessions' creation that does not overlap (None if unknown). "on" lists the causes:
        "what", "share" (of the creation) and "evidence".
    """
    if measured.sessions < 2:
        return []
    return [
        {
            "way": way,
            "devices": measured.sessions,
            "speedup": measured.speedup(way),
            "ideal": float(measured.sessions),
            "serial": _serial_share(measured, way),
            "on": [
                {"what": what, "share": min(share, 1.0), "evidence": evidence}
                for what, share, evidence in _shares(measured, way)
                if share >= _LEAST_SHARE
            ],
        }
        for way in measured.ways
    ]


def _serial_share(measured: Measured, way: str) -> float | None:
    """Return the time of a further session, divided by its time in the sequential way; 0 to 1."""
    alone, together = (measured.watched_creation("sequential", count) for count in (1, measured.sessions))
    own_alone, own_together = (measured.watched_creation(way, count) for count in (1, measured.sessions))
    if alone is None or together is None or own_alone is None or own_together is None:
        return None
    if together - alone <= 0.1 * alone:
        return None  # further sessions cost next to nothing
    return min(max((own_together - own_alone) / (together - alone), 0.0), 1.0)


def _shares(measured: Measured, way: str) -> Iterator[tuple[str, float, str]]:
    """Yield each cause that holds up a way's creation, its share of the creation, and the sources of this figure."""
    sessions, creation = measured.sessions, measured.creation(way)
    if not creation:
        return
    if way == "sequential":
        yield "its own order", 1 - 1 / sessions, "one session after the other, and nothing else waits meanwhile"
    held = measured.gil_share(way)
    if way in ("threads", "native", "shared") and held is not None:  # others: one thread, or a GIL for each process
        holder = measured.release if way == "threads" else "ortmulti"
        yield "gil", held, f"{holder} holds the GIL for {held:.0%} of a session's creation (heartbeat)"
    if driver := measured.driver():
        seconds = measured.cause(way, "cuInit", "context") or driver.floor
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
        moving = measured.cause(way, "read weights", "stage weights", "copy weights", "prepacking")
        evidence = (
            f"{sessions} threads copy {all_at_once / 1e9:.1f} GB/s together and one {one / 1e9:.1f} GB/s; reading, "
            f"copying and packing weights take {seconds_text(moving)} of the creation"
        )
        yield "memory", (1 - all_at_once / one / sessions) * min(moving / creation, 1.0), evidence
    if way != "sequential":
        waits = measured.cause(way, "wait for another session")
        evidence = f"its sessions' threads wait {seconds_text(waits)} for each other"
        alone, together = measured.watched_creation("native", 1), measured.watched_creation("native")
        if alone and together:
            evidence += f"; native creates {sessions} sessions in {together / alone:.1f} times the time of one"
        yield "onnxruntime", waits / creation, evidence


def prediction(measured: Measured) -> dict[str, Any] | None:
    """Predict which way has all sessions created first.

    Returns:
        "best"; "seconds" by way until all sessions are created, with the start of worker processes; "equal", the ways
        that may be as fast; "why". None if nothing was measured on all devices.
    """
    intervals = {way: interval for way in measured.ways if (interval := measured.creation_interval(way)) is not None}
    if not intervals:
        return None
    best = measured.best
    least = intervals[best].median
    others = sorted((way for way in intervals if way != best), key=lambda way: intervals[way].median)
    equal = [
        way
        for way, interval in intervals.items()
        if way != best and (interval.median <= least * (1 + _EQUAL) or interval.low <= least)
    ]
    text = f"{seconds_text(least)} to create the sessions on {describe(measured.devices)}"
    if others:
        text += f", with {others[0]}, the next, {seconds_text(intervals[others[0]].median)}"
    text += f": {_reason(measured)}"
    if equal:
        text += f"; {' and '.join(equal)} may be as fast, by the spread of the measurements"
    seconds = {way: interval.median for way, interval in intervals.items()}
    return {"best": best, "seconds": seconds, "equal": equal, "why": text}


def _reason(measured: Measured) -> str:
    """Return why the best way is the best."""
    held = measured.gil_share("threads")
    best = measured.best
    if best == "shared":
        if not measured.gpus:
            return "sessions on the CPU are handles to one, so that the model is loaded once"
        return "weights are read once, while the driver starts, and the other devices copy them from the first"
    if best == "native":
        return "each session has a thread that does not need the GIL, and there is nothing to share"
    if best == "threads":
        share = "" if held is None else f" ({held:.0%} of creation)"
        return f"{measured.release} hardly holds the GIL{share}, and no process has to be started"
    if best == "processes":
        holds = held is not None and held >= 0.3
        held_text = f"{measured.release} holds the GIL for {held:.0%} of creation, and " if holds else ""
        return f"{held_text}creation takes longer than starting the processes"
    if measured.sessions == 1:
        return "there is one session, and nothing that could be done at once"
    return "sessions are created in so little time that doing it at once costs more than it saves"
