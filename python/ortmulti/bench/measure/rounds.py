"""Rounds: cases take turns, and are compared within a round.

Clock speed and other load change with time, but affect all cases of a round alike. So a ratio is made within a round,
and its median is taken over the rounds.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from ortmulti.errors import Error

Value = TypeVar("Value")
Case = TypeVar("Case", bound=Hashable)
Result = TypeVar("Result")

CONFIDENCE = 0.95
"""The confidence of an `Interval`: six measurements are the fewest that have it."""


def rotated(values: Sequence[Value], number: int) -> list[Value]:
    """Return the values in the order of a round: each round begins with the next value."""
    turn = number % max(1, len(values))
    return [*values[turn:], *values[:turn]]


def alternating(values: Sequence[Value], number: int) -> list[Value]:
    """Return the values in the order of a round: every second round goes backwards."""
    return [*values] if number % 2 == 0 else [*values[::-1]]


def round_numbers(repeat: int, budget: float, least: int = 1) -> Iterator[int]:
    """Yield 0, 1, ... for `repeat` rounds, or as many as begin within `budget` seconds, but `least` whatever it is."""
    begin = time.monotonic()
    for number in range(repeat):
        if number >= least and time.monotonic() - begin > budget:
            return
        yield number


def failure(error: Error) -> dict[str, Any]:
    """Return the result of a case that failed: its message and the end of its standard error."""
    return {"error": str(error) or type(error).__name__, "stderr": getattr(error, "stderr", "")}


def of_case(rounds: Iterable[Mapping[Case, Result]], case: Case) -> list[Result]:
    """Return a case's results, of the rounds that have one."""
    return [results[case] for results in rounds if case in results]


def ratios(
    rounds: Iterable[Mapping[Case, Result]], case: Case, base: Case, figure: Callable[[Result], float | None]
) -> list[float]:
    """Return a case's figure over another case's, within each round in which both have one.

    Args:
        rounds: the results of each round by case.
        case: numerator.
        base: denominator; a round in which its figure is 0 is left out.
        figure: figure of a result; None if the result has none.
    """
    found = []
    for results in rounds:
        if case in results and base in results:
            above, below = figure(results[case]), figure(results[base])
            if above is not None and below:
                found.append(above / below)
    return found


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return the "median" of some measurements with their range, "lowest" and "highest"; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return {"median": statistics.median(ordered), "lowest": ordered[0], "highest": ordered[-1]}


def spread_of_all(lists: Iterable[Iterable[float]]) -> dict[str, float] | None:
    """Return the spread of all values of several measurements."""
    return spread(itertools.chain.from_iterable(lists))


def by_device(values: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Return the spread of each device's figures, of measurements that have one for some devices."""
    found = list(values)
    devices = sorted({device for one in found for device in one})
    return {device: spread(one[device] for one in found if device in one) for device in devices}


@dataclass(frozen=True)
class Interval:
    """The median of some measurements with its confidence interval, from order statistics: whatever their distribution.

    Attributes:
        median, lowest, highest: of the measurements.
        low, high: the interval's ends.
        confidence: how probably it holds the median; at least 0.95 from six measurements on.
    """

    median: float
    lowest: float
    highest: float
    low: float
    high: float
    confidence: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Interval | None:
        """Return the shortest interval of `values` with a confidence of 0.95; of few values their range."""
        ordered = sorted(values)
        if not ordered:
            return None
        count = len(ordered)
        # The number of values below the median is binomial. `outside` are that many at each end, left out.
        outside, confidence = 0, 1 - 2 * 0.5**count
        while (count - 1) // 2 > outside:
            next_confidence = confidence - 2 * math.comb(count, outside + 1) * 0.5**count
            if next_confidence < CONFIDENCE:
                break
            outside, confidence = outside + 1, next_confidence
        median = statistics.median(ordered)
        return cls(median, ordered[0], ordered[-1], ordered[outside], ordered[-1 - outside], confidence)

    @classmethod
    def json(cls, values: Iterable[float]) -> dict[str, float] | None:
        """Return `of` as JSON can carry it."""
        found = cls.of(values)
        return None if found is None else asdict(found)
