"""How far arrays of floats are apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ortmulti.values import floats


class Apart(NamedTuple):
    """How far floats of one shape are apart, where they are finite.

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
    largest = max(float(np.abs(both).max(initial=0.0)) for both in (first, second))
    return Apart(float(np.abs(first - second).max(initial=0.0)), largest, bool(finite.all()))
