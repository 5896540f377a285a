"""How far two answers to one request are apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortmulti.optimized.comparison import same_bits
from ortmulti.values import floats

TOLERANCE = 0.01
"""Differences up to this share of the largest value are rounding: runs of other sizes use other kernels."""
CANCELLATION = 1e-6
"""Differences below this share of the largest input are rounding, however small the output is."""
_UNITS = 4
"""So many units in the last place are rounding, too, for types with fewer bits than float16."""
_COARSEST = 0.25


def difference(one: Any, other: Any) -> float:
    """Return the largest difference as a share of the largest value; of what is not floats, 1.0 for other bits."""
    if same_bits([one], [other]):
        return 0.0
    if one.shape != other.shape or not floats.is_floating(one.dtype):
        return 1.0
    one, other = floats.as_float64(one), floats.as_float64(other)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)) or not np.array_equal(
        one[~finite], other[~finite], equal_nan=True
    ):
        return 1.0
    largest = max(np.abs(one[finite]).max(initial=0.0), np.abs(other[finite]).max(initial=0.0), np.finfo(float).tiny)
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0) / largest)


def tolerance(dtype: np.dtype[Any]) -> float:
    """Return which share of the largest value is rounding in an output of this type."""
    if not floats.is_floating(dtype):
        return TOLERANCE
    return max(TOLERANCE, min(_UNITS * floats.rounding(dtype), _COARSEST))


def within_rounding(one: Any, other: Any, floor: float) -> float:
    """Return `difference` for runs of other sizes: `TOLERANCE` at most if it is rounding.

    A sum that cancels out leaves nothing but rounding. Of numbers that are not floats rounding changes a few: then it
    is the share of elements that differ.

    Args:
        floor: Absolute differences up to this are rounding.
    """
    if one.shape != other.shape:
        return 1.0
    if not floats.is_floating(one.dtype):
        return float(np.mean(one != other)) if one.size else 0.0
    found = difference(one, other)
    if found <= tolerance(one.dtype):
        return min(found, TOLERANCE)
    first, second = floats.as_float64(one), floats.as_float64(other)
    if np.isfinite(first).all() and np.isfinite(second).all():
        apart = np.abs(first - second).max(initial=0.0)
        return min(found, TOLERANCE) if apart <= floor else found
    return found
