"""Rows of requests' inputs and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["are_rows", "join_rows", "take_rows"]


def take_rows(feed: Mapping[str, Any], rows: Sequence[int], axis: int) -> dict[str, NDArray[Any]]:
    """Return a request of these rows. Arrays without the dimension stay."""
    return {name: array.take(rows, axis) if axis < array.ndim else array for name, array in feed.items()}


def join_rows(feeds: Sequence[Mapping[str, Any]], axis: int) -> dict[str, NDArray[Any]]:
    """Return one request of the rows of all, with the first one's arrays that lack the dimension.

    Raises:
        KeyError, ValueError: They do not fit together.
    """
    return {
        name: np.concatenate([feed[name] for feed in feeds], axis) if axis < array.ndim else array
        for name, array in feeds[0].items()
    }


def are_rows(answer: Any, axis: int, rows: int) -> bool:
    """Return whether an output has so many rows."""
    shape = getattr(answer, "shape", ())
    return axis < len(shape) and shape[axis] == rows
