"""Memory shared by a pool and a worker, with arrays in it."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Place", "Segment", "place_all", "space_for", "take", "view"]

# Arrays begin at multiples of this, which suits every kernel's loads.
_ALIGNMENT = 64
_HEADER = _ALIGNMENT
_SMALLEST = 1 << 16

Place: TypeAlias = tuple[str, tuple[int, ...], int] | bytes
"""Where a value is: an array's dtype, shape and offset in the segment, or the pickled value itself."""


class Segment:
    """A memfd's memory: a byte that says whether a run has begun, and arrays. Freed with the last array over it.

    It is in no file system. So the size of /dev/shm, 64 MB in many containers, does not limit it.

    Args:
        descriptor: Descriptor of the memfd. The object does not need it after its construction.
    """

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self.memory = mmap.mmap(descriptor, self.size)

    @staticmethod
    def make(size: int) -> tuple[Segment, int]:
        """Return a new segment with room for so many bytes of arrays, and its descriptor. The caller sends and closes
        it.

        Raises:
            OSError: There is no memory or no descriptor left.
        """
        descriptor = os.memfd_create("ortmulti", os.MFD_CLOEXEC)
        try:
            # Only what is used takes memory: room for somewhat larger requests costs nothing.
            os.ftruncate(descriptor, max(_SMALLEST, _round_up(size + size // 4 + _HEADER, mmap.PAGESIZE)))
            return Segment(descriptor), descriptor
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def begun(self) -> bool:
        """Whether the worker has begun the run with these inputs."""
        return self.memory[0] != 0

    @begun.setter
    def begun(self, value: bool) -> None:
        self.memory[0] = value


def space_for(values: Sequence[Any], start: int = _HEADER) -> int:
    """Where values end in a segment that are placed from ``start`` on."""
    for value in values:
        if _is_plain(value):
            start = _round_up(start, _ALIGNMENT) + value.nbytes
    return start


def place_all(segment: Segment, values: Sequence[Any], start: int = _HEADER) -> list[Place]:
    """Copy arrays into the segment, which must be large enough. Other values are pickled."""
    places: list[Place] = []
    for value in values:
        if not _is_plain(value):
            places.append(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
            continue
        start = _round_up(start, _ALIGNMENT)
        place = (value.dtype.str, value.shape, start)
        view(segment, place)[...] = value
        places.append(place)
        start += value.nbytes
    return places


def view(segment: Segment, place: tuple[str, tuple[int, ...], int]) -> np.ndarray[Any, Any]:
    """Return the array at a place, over the segment's memory."""
    dtype, shape, offset = place
    return np.ndarray(shape, dtype, segment.memory, offset)


def take(segment: Segment, place: Place, copy: bool) -> Any:
    """Return the value at a place; an array as a copy, or over the segment's memory."""
    if isinstance(place, bytes):
        return pickle.loads(place)
    array = view(segment, place)
    return array.copy() if copy else array


def _is_plain(value: object) -> bool:
    # Of native byte order as well: the checked inputs are, and onnxruntime's outputs.
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
