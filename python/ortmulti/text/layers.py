"""The linear layers behind the pooling that an ONNX file lacks: `Dense` of sentence-transformers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortmulti._runtime.regular_file import open_regular
from ortmulti.errors import InvalidArgument, NoSuchFile
from ortmulti.text.vectors import activated

if TYPE_CHECKING:
    from ortmulti.text.modules import Layer

__all__ = ["Layers", "read_weights"]

_WEIGHT, _BIAS = "linear.weight", "linear.bias"
_MOST_HEADER = 1 << 20  # bytes
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Layers:
    """Computes the layers of an export.

    Raises:
        NoSuchFile: A layer's weights cannot be read.
        InvalidArgument: It has other weights than its configuration says.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = [(*_weights(layer), layer.activation) for layer in layers]
        self.width = layers[-1].outputs if layers else 0

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what becomes of vectors ``[..., inputs]``."""
        if not vectors.size and self.width:
            return np.empty((*vectors.shape[:-1], self.width), np.float32)
        for weight, bias, activation in self._layers:
            if vectors.shape[-1] != weight.shape[1]:
                raise InvalidArgument(f"a Dense module takes {weight.shape[1]} elements, not {vectors.shape[-1]}")
            vectors = activated(vectors @ weight.T + bias, activation)
        return vectors


def _weights(layer: Layer) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    wanted: dict[str, tuple[int, ...]] = {_WEIGHT: (layer.outputs, layer.inputs)}
    if layer.bias:
        wanted[_BIAS] = (layer.outputs,)
    found = read_weights(layer.file, wanted)
    return found[_WEIGHT], found.get(_BIAS, np.zeros(1, np.float32))


def read_weights(file: Path, wanted: dict[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Read tensors of a file of safetensors: a header's length in 8 bytes, the header in JSON, the numbers.

    Args:
        file: The file.
        wanted: The shapes that its tensors must have, by name.
    """
    try:
        opened = open_regular(file)
    except OSError as error:
        raise NoSuchFile(f"'{file}' cannot be read: {error.strerror}") from None
    with opened:
        try:
            length = int.from_bytes(opened.read(8), "little")
            header: Any = json.loads(opened.read(length)) if length <= _MOST_HEADER else {}
            return {name: _tensor(opened, 8 + length, header[name], shape) for name, shape in wanted.items()}
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"'{file}' does not have the tensors {wanted} of its config.json ({type(error).__name__}: {error}): "
                "get it again"
            ) from None


def _tensor(file: Any, begin: int, told: dict[str, Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    type_, (first, end) = np.dtype(_TYPES[told["dtype"]]), told["data_offsets"]
    size = math.prod(shape) * type_.itemsize
    if told["shape"] != list(shape) or type(first) is not int or first < 0 or end - first != size:
        raise ValueError(f"it has {told!s:.200}")
    if begin + end > os.fstat(file.fileno()).st_size:
        raise ValueError("the file is cut off")
    file.seek(begin + first)
    found = np.frombuffer(file.read(size), type_).reshape(shape)
    if told["dtype"] == "BF16":  # the upper half of a float32
        return (found.astype("<u4") << 16).view("<f4").astype(np.float32)
    return found.astype(np.float32)
