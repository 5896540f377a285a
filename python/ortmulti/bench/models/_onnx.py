"""Seeded random weights, and the .onnx file that has them or names their file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti.bench.models._graph import Graph, Normal, Weight
from ortmulti.bench.models._inputs import require_onnx

TILE = 1 << 22
"""Elements of the tile: 16 MiB of float32."""

SCALED_TILES = 3
"""Scaled copies of the tile that are kept; with the tile itself 64 MiB at most."""


class NormalSource:
    """Normal values that depend only on the seed and the tensor's name, not on the order of calls."""

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
        """Return all of the weight's values, shaped."""
        return np.concatenate(list(self.blocks(weight))).reshape(weight.shape)

    def _scale(self, values: Normal, dtype: np.dtype[Any]) -> NDArray[Any]:
        return _scaled(self._tile, values, dtype)


def _scaled(tile: NDArray[np.float32], values: Normal, dtype: np.dtype[Any]) -> NDArray[Any]:
    return (tile * np.float32(values.std) + np.float32(values.mean)).astype(dtype, copy=False)


def serialize(graph: Graph, data_name: str, source: NormalSource) -> bytes:
    """Return the .onnx file's bytes.

    Args:
        graph: The model.
        data_name: Name of the file of the external weights, beside the model.
        source: Source of the weights' values inside the file.

    Returns:
        The serialized model.
    """
    onnx = require_onnx()
    offsets = {weight.name: offset for weight, offset in graph.external_layout()[0]}
    tensors = [
        _external(onnx, weight, data_name, offsets[weight.name])
        if weight.name in offsets
        else onnx.numpy_helper.from_array(source.array(weight), weight.name)
        for weight in graph.weights
    ]
    return graph.serialize(tensors)


def _external(onnx: Any, weight: Weight, data_name: str, offset: int) -> Any:
    tensor = onnx.TensorProto(
        name=weight.name,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(weight.dtype),
        dims=weight.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", data_name), ("offset", offset), ("length", weight.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
