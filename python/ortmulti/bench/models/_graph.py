"""A model as an ONNX graph, with its weights' statistics in place of their bytes.

A model is described completely before anything is written. So its size is known in advance, and a model larger than
memory is never in memory as a whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti.bench.models._inputs import require_onnx

OPSET = 17
IR_VERSION = 8
ALIGNMENT = 4096
"""External tensors begin at multiples of this many bytes: pages, so that each can be mapped by itself."""

PRECISIONS: dict[str, type[np.generic]] = {"fp16": np.float16, "fp32": np.float32}
"""What weights and activations may be, for the models that let one choose."""

INLINE_BYTES = 1024
"""Tensors up to this size stay in the .onnx file, whatever the model: shapes, axes and scalars."""


@dataclass(frozen=True)
class Weight:
    """One initializer.

    Attributes:
        values: Its values; or the mean and the standard deviation of those that are drawn when it is written.
        nbytes: Its size.
        offset: Where it begins in the data file; None: it is in the .onnx file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values: tuple[float, float] | NDArray[Any]
    nbytes: int
    offset: int | None


class Graph:
    """The graph under construction; every method that adds something returns the name of the value it makes.

    Args:
        name: the graph's.
        external: whether its weights lie in a file beside the .onnx file.
        dtype: of its weights.

    Attributes:
        weights: every initializer, in the files' order.
        weight_bytes: of all weights together, without padding.
        data_bytes: size of the data file.

    Raises:
        LibraryError: The onnx package is not installed.
    """

    def __init__(self, name: str, *, external: bool = False, dtype: type[np.generic] = np.float32) -> None:
        self.onnx = require_onnx()
        self.dtype = np.dtype(dtype)
        self.weights: list[Weight] = []
        self.weight_bytes = self.data_bytes = 0
        self._external = external
        self._graph = self.onnx.helper.make_graph([], name, [], [])

    def input(self, name: str, shape: tuple[int | str, ...], dtype: type[np.generic] | None = None) -> str:
        self._graph.input.append(self._value(name, shape, dtype))
        return name

    def output(self, name: str, shape: tuple[int | str, ...]) -> None:
        self._graph.output.append(self._value(name, shape))

    def declare(self, name: str, shape: tuple[int | str, ...]) -> None:
        """Declare the shape of an intermediate value that ONNX's inference does not find."""
        self._graph.value_info.append(self._value(name, shape))

    def _value(self, name: str, shape: tuple[int | str, ...], dtype: type[np.generic] | None = None) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, self.element_type(np.dtype(dtype or self.dtype)), shape)

    def element_type(self, dtype: np.dtype[Any]) -> int:
        """Return ONNX's number of a type."""
        number: int = self.onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return number

    def weight(self, name: str, shape: tuple[int, ...], *, std: float, mean: float = 0.0) -> str:
        return self._add(name, shape, self.dtype, (mean, std))

    def constant(self, name: str, array: NDArray[Any]) -> str:
        return self._add(name, array.shape, array.dtype, array)

    def _add(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], values: tuple[float, float] | NDArray[Any]
    ) -> str:
        offset = None
        size = math.prod(shape) * dtype.itemsize
        self.weight_bytes += size
        if self._external and size > INLINE_BYTES:
            offset = -(-self.data_bytes // ALIGNMENT) * ALIGNMENT
            self.data_bytes = offset + size
        self.weights.append(Weight(name, shape, dtype, values, size, offset))
        return name

    def node(self, op: str, *inputs: str, name: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output. The output has the node's name, or `output`."""
        return self._nodes(op, inputs, [output or f"{name}/output"], name, attributes)[0]

    def split(self, value: str, sizes: str, *, count: int, name: str, axis: int) -> list[str]:
        """Add a Split into `count` parts whose sizes the int64 tensor `sizes` holds."""
        return self._nodes("Split", (value, sizes), [f"{name}/output_{i}" for i in range(count)], name, {"axis": axis})

    def _nodes(
        self, op: str, inputs: tuple[str, ...], outputs: list[str], name: str, more: dict[str, Any]
    ) -> list[str]:
        self._graph.node.append(self.onnx.helper.make_node(op, inputs, outputs, name=name, **more))
        return outputs

    def serialize(self, tensors: list[Any]) -> bytes:
        """Return the .onnx file's bytes, with these initializers."""
        self._graph.initializer.extend(tensors)
        model = self.onnx.helper.make_model(
            self._graph,
            opset_imports=[self.onnx.helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="ortmulti",
        )
        result: bytes = model.SerializeToString(deterministic=True)
        return result
