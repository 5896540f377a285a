"""From when requests were asked for and answered to throughput and latency; no clock is read here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .loads import NANOSECONDS

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ascending values that at least `share` of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarize(seconds: Iterable[float]) -> dict[str, float] | None:
    """ "count", "mean", "max" and `QUANTILES` of latencies in seconds; None if there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    shares = {name: quantile(ordered, share) for name, share in QUANTILES.items()}
    return {"count": len(ordered), "mean": math.fsum(ordered) / len(ordered), "max": ordered[-1], **shares}


@dataclass(frozen=True)
class Arrival:
    """One request of an open loop, in nanoseconds of one clock.

    Attributes:
        intended: when it was to be asked for.
        sent: when it was.
        done: when it was answered; None if it was not, until `closed_loop` or `open_loop` is called.
    """

    intended: int
    sent: int
    done: int | None


def closed_loop(answers: Iterable[tuple[int, int]], begin: int, end: int) -> dict[str, Any]:
    """What a closed loop did within a stretch of time, whose ends fall anywhere into its requests.

    Args:
        answers: (asked, answered) of each request, in nanoseconds.
        begin, end: the stretch; requests that were answered within it count.

    Returns:
        "requests", "throughput" (answers a second) and "latency" (`summarize`).
    """
    counted = [(done - asked) / NANOSECONDS for asked, done in answers if begin < done <= end]
    return {
        "requests": len(counted),
        "throughput": len(counted) * NANOSECONDS / (end - begin),
        "latency": summarize(counted),
    }


def open_loop(arrivals: Iterable[Arrival], begin: int, end: int, now: int) -> dict[str, Any]:
    """What an open loop did within a stretch of time.

    Latency begins when a request was to be asked for. So a request that waited because the ones before it were slow,
    or because whoever asks was late, has waited: leaving that out is what is called coordinated omission.

    Args:
        arrivals: all requests of the loop.
        begin, end: the stretch, in nanoseconds. Those that were to be asked for within it are offered and have a
            latency; those that were answered within it are achieved.
        now: until when unanswered requests have waited; that is their latency, which is too low.

    Returns:
        "requests" and "offered" (a second), "throughput" (answers a second), "unanswered", "latency" (`summarize`),
        and "lag" (`summarize`): how late requests were asked for.
    """
    everything = list(arrivals)
    offered = [one for one in everything if begin <= one.intended < end]
    achieved = sum(1 for one in everything if one.done is not None and begin < one.done <= end)
    return {
        "requests": len(offered),
        "offered": len(offered) * NANOSECONDS / (end - begin),
        "throughput": achieved * NANOSECONDS / (end - begin),
        "unanswered": sum(1 for one in offered if one.done is None),
        "latency": summarize(((now if one.done is None else one.done) - one.intended) / NANOSECONDS for one in offered),
        "lag": summarize((one.sent - one.intended) / NANOSECONDS for one in offered),
    }
