"""Seeded normal values at the speed of memory.

Drawing a normal variate costs more than writing it to a fast disk, so one tile is drawn for each seed and every
tensor is put together from pieces of that tile, which begin at places drawn from the tensor's own name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti.tools.models._graph import Normal, Weight

TILE = 1 << 22
"""Elements of the tile: 16 MiB of float32."""

SCALED_TILES = 3
"""Scaled copies of the tile that are kept; with the tile itself 64 MiB at most."""


class NormalSource:
    """Normal values that depend on the seed and the tensor's name only, not on the order of asking."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._tile = np.random.Generator(np.random.SFC64(seed)).standard_normal(TILE, dtype=np.float32)
        self._scaled_tile = lru_cache(maxsize=SCALED_TILES)(self._scale)

    def blocks(self, weight: Weight) -> Iterator[NDArray[Any]]:
        """The weight's values in order, as flat arrays that must not be written to.

        Args:
            weight: A tensor with `Normal` or given values.

        Yields:
            Arrays of the weight's dtype, at most TILE / 2 elements each.
        """
        if not isinstance(weight.values, Normal):
            yield np.ascontiguousarray(weight.values).reshape(-1)
            return
        starts = np.random.Generator(np.random.SFC64([self._seed, zlib.crc32(weight.name.encode())]))
        done = 0
        while done < weight.elements:
            count = min(weight.elements - done, TILE // 2)
            start = int(starts.integers(TILE - count))
            piece = slice(start, start + count)
            if weight.elements >= TILE:
                yield self._scaled_tile(weight.values, weight.dtype)[piece]
            else:  # A whole scaled tile would cost more than the tensor.
                yield _scaled(self._tile[piece], weight.values, weight.dtype)
            done += count

    def array(self, weight: Weight) -> NDArray[Any]:
        """All of the weight's values, shaped."""
        return np.concatenate(list(self.blocks(weight))).reshape(weight.shape)

    def _scale(self, values: Normal, dtype: np.dtype[Any]) -> NDArray[Any]:
        return _scaled(self._tile, values, dtype)


def _scaled(tile: NDArray[np.float32], values: Normal, dtype: np.dtype[Any]) -> NDArray[Any]:
    return (tile * np.float32(values.std) + np.float32(values.mean)).astype(dtype, copy=False)
