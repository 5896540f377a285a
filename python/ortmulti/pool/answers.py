"""How far two answers to one request are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmulti.optimized.comparison import same_bits
from ortmulti.values import floats
from ortmulti.values.apart import apart

TOLERANCE = 0.01
"""Differences up to this share of the largest value are rounding: runs of other sizes use other kernels."""
CANCELLATION = 1e-6
"""Differences below this share of the largest input are rounding, however small the output is."""
_NOISE, _TIMES = 2e-6, 4
"""Neighbours may make a smaller difference than this, or than so many times what a repeated run makes."""
_OUTLIER = 100
"""By how much numbers are made larger, so that a scale that all rows share becomes another one."""
_UNITS = 4
"""So many units in the last place are rounding, too, for types with fewer bits than float16."""
_COARSEST = 0.25


@dataclass(frozen=True)
class OutputCheck:
    """What one output of a request depends on.

    Differences are shares of the output's largest value. Of what is not floats they are 1.0, of ``size`` the share of
    elements that differ. 0.0 means the same bits.

    Attributes:
        neighbours: By how much it differs beside other requests in runs of the same size.
        size: By how much it differs from the answer to the request alone. Runs of another size may use other kernels,
            which round differently: 1e-6 is usual for float32, 1e-3 for float16. A few units in the last place of
            types with fewer bits count as 0.01 at most.
        repeats: By how much it differs when the same run is repeated; not 0.0 if kernels or random numbers do so.
    """

    neighbours: float
    size: float
    repeats: float

    @property
    def independent(self) -> bool:
        """Whether a joined request gets the answer that it gets alone, but for rounding."""
        return not self.problem

    @property
    def problem(self) -> str:
        """How the answers differ; empty: by rounding at most."""
        if self.repeats > TOLERANCE:
            return f"differs by {self.repeats:.2g} of its largest value when the same run is repeated"
        if self.neighbours > max(_NOISE, _TIMES * self.repeats):
            return f"differs by {self.neighbours:.2g} of its largest value beside other requests"
        if self.size > TOLERANCE:
            return f"differs by {self.size:.2g} of its largest value from the answer to the request alone"
        return ""


def difference(one: Any, other: Any) -> float:
    """Return the largest difference as a share of the largest value; of what is not floats, 1.0 for other bits."""
    if same_bits([one], [other]):
        return 0.0
    if one.shape != other.shape or not floats.is_floating(one.dtype):
        return 1.0
    found = apart(one, other)
    return 1.0 if found is None else found.most / max(found.largest, np.finfo(float).tiny)


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
    by = apart(one, other)
    return min(found, TOLERANCE) if by is not None and by.finite and by.most <= floor else found


def largest(feed: Mapping[str, Any]) -> float:
    """Return the largest number of a request's inputs."""
    numbers = (array for array in feed.values() if array.dtype.kind in "iu" or floats.is_floating(array.dtype))
    return float(max((np.abs(floats.as_float64(array)).max(initial=0) for array in numbers), default=0))


def larger(feed: Mapping[str, Any]) -> dict[str, Any]:
    """Make the floats of a request's inputs much larger."""
    with np.errstate(over="ignore", invalid="ignore"):  # float8 ends at 448
        return {
            name: array * array.dtype.type(_OUTLIER) if floats.is_floating(array.dtype) else array
            for name, array in feed.items()
        }
