"""How far arrays of floats are apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortmulti.values import floats

_LARGE, _GAP = 14, 5
"""Exponents of `np.frexp`: numbers of 8,192 and more, which are at least 16 times as large as the next smaller one."""


class Apart(NamedTuple):
    """How far floats of one shape are apart, where they are finite.

    Numbers that are far larger than the others, such as those of masked places, would hide how far these are apart.
    So each such group is compared by itself, and this says it of the one that is farthest apart for its size.

    Attributes:
        most: The largest difference.
        largest: The largest value.
        finite: Whether all are.
    """

    most: float
    largest: float
    finite: bool


def apart(one: Any, other: Any) -> Apart | None:
    """Return how far floats of one shape are apart; None: others of them are infinite or not a number."""
    first, second = floats.as_float64(one), floats.as_float64(other)
    finite = np.isfinite(first)
    if not np.array_equal(finite, np.isfinite(second)) or not np.array_equal(
        first[~finite], second[~finite], equal_nan=True
    ):
        return None
    first, second = first[finite], second[finite]
    sizes, differences = np.maximum(np.abs(first), np.abs(second)), np.abs(first - second)
    worst = Apart(0.0, 0.0, bool(finite.all()))
    for group in _groups(sizes):
        most, largest = (float(each[group].max(initial=0.0)) for each in (differences, sizes))
        if worst.largest == 0.0 or most * worst.largest > worst.most * largest:
            worst = Apart(most, largest, worst.finite)
    return worst


def ordinary(sizes: NDArray[np.float64]) -> float:
    """Return the largest of these sizes, but for those that are far larger than the others."""
    return float(sizes[next(_groups(sizes))].max(initial=0.0))


def _groups(sizes: NDArray[np.float64]) -> Iterator[NDArray[np.bool_]]:
    exponents = np.frexp(sizes)[1]
    there = np.unique(exponents[sizes > 0])
    cuts = [later for before, later in itertools.pairwise(there) if later >= max(_LARGE, before + _GAP)]
    for begin, end in itertools.pairwise([-np.inf, *cuts, np.inf]):
        yield (begin <= exponents) & (exponents < end)
