"""By how much answers to the same rows differ, and what of that is rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmulti.optimized.comparison import same_bits

__all__ = ["CANCELLATION", "OUTLIER", "OutputCheck", "difference", "largest", "rounding"]

_TOLERANCE = 0.01
_NOISE, _TIMES = 2e-6, 4
"""Neighbours may make a smaller difference than this, or than so many times what a repeated run makes."""
CANCELLATION = 1e-6
"""Differences below this share of the largest input are rounding, however small the output is."""
OUTLIER = 100
"""By how much the second neighbour's numbers are larger, so that a scale that all rows share becomes another one."""


@dataclass(frozen=True)
class OutputCheck:
    """What one output of a request depends on.

    Differences are shares of the output's largest value. Of what is not floats they are 1.0, of ``size`` the share of
    elements that differ. 0.0 means the same bits.

    Attributes:
        neighbours: By how much it differs beside other requests in runs of the same size.
        size: By how much it differs from the answer to the request alone. Runs of another size may use other kernels,
            which round differently: 1e-6 is usual for float32, 1e-3 for float16.
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
        if self.repeats > _TOLERANCE:
            return f"differs by {self.repeats:.2g} of its largest value when the same run is repeated"
        if self.neighbours > max(_NOISE, _TIMES * self.repeats):
            return f"differs by {self.neighbours:.2g} of its largest value beside other requests"
        if self.size > _TOLERANCE:
            return f"differs by {self.size:.2g} of its largest value from the answer to the request alone"
        return ""


def largest(feed: Mapping[str, Any]) -> float:
    """Return the largest number of a request's inputs."""
    found = (np.abs(array).max(initial=0) for array in feed.values() if array.dtype.kind in "fiu")
    return float(max(found, default=0))


def rounding(one: Any, other: Any, floor: float) -> float:
    """Return the same as `difference`, for runs of other sizes.

    A sum that cancels out leaves nothing but rounding, and of numbers that are not floats rounding changes a few.
    """
    if one.shape != other.shape:
        return 1.0
    if one.dtype.kind != "f":
        return float(np.mean(one != other)) if one.size else 0.0
    found = difference(one, other)
    if found and np.isfinite(one).all() and np.isfinite(other).all():
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0)
        return min(found, _TOLERANCE) if apart <= floor else found
    return found


def difference(one: Any, other: Any) -> float:
    """Return by how much two answers differ, as a share of the largest value; 0.0: they have the same bits."""
    if same_bits([one], [other]):
        return 0.0
    if one.shape != other.shape or one.dtype.kind != "f":
        return 1.0
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)) or not np.array_equal(
        one[~finite], other[~finite], equal_nan=True
    ):
        return 1.0
    most = max(np.abs(one[finite]).max(initial=0.0), np.abs(other[finite]).max(initial=0.0), np.finfo(float).tiny)
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0) / most)
