"""A model as an ONNX graph, with its weights' statistics in place of their bytes.

A model is described completely before anything is written. So its size is known in advance, and a model larger than
memory is never in memory as a whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

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
class Normal:
    """Random values: normal with this mean and standard deviation."""

    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class Weight:
    """One initializer. Its values are given, or drawn when it is written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values: Normal | NDArray[Any]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


Placement = Literal["inline", "external"]


class Graph:
    """The graph under construction; every method that adds something returns the name of the value it makes.

    Args:
        name: the graph's.
        placement: where its weights lie: in the .onnx file, or in a file beside it.
        dtype: of its weights.

    Raises:
        LibraryError: The onnx package is not installed.
    """

    def __init__(self, name: str, placement: Placement = "inline", dtype: type[np.generic] = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self.weights: list[Weight] = []
        self._placement = placement
        self._helper = require_onnx().helper
        self._graph = self._helper.make_graph([], name, [], [])

    def input(self, name: str, shape: tuple[int | str, ...], dtype: type[np.generic] | None = None) -> str:
        self._graph.input.append(self._value(name, shape, dtype))
        return name

    def output(self, name: str, shape: tuple[int | str, ...]) -> None:
        self._graph.output.append(self._value(name, shape))

    def declare(self, name: str, shape: tuple[int | str, ...]) -> None:
        """Declare the shape of an intermediate value that ONNX's inference does not find."""
        self._graph.value_info.append(self._value(name, shape))

    def _value(self, name: str, shape: tuple[int | str, ...], dtype: type[np.generic] | None = None) -> Any:
        element_type = self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        return self._helper.make_tensor_value_info(name, element_type, shape)

    def weight(self, name: str, shape: tuple[int, ...], *, std: float, mean: float = 0.0) -> str:
        self.weights.append(Weight(name, shape, self.dtype, Normal(mean, std)))
        return name

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self.weights.append(Weight(name, array.shape, array.dtype, array))
        return name

    def node(self, op: str, *inputs: str, name: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output. The output has the node's name, or `output`."""
        result = output or f"{name}/output"
        self._graph.node.append(self._helper.make_node(op, inputs, [result], name=name, **attributes))
        return result

    def cast(self, value: str, dtype: np.dtype[Any], *, name: str) -> str:
        """Add a Cast."""
        return self.node("Cast", value, name=name, to=self._helper.np_dtype_to_tensor_dtype(dtype))

    def split(self, value: str, sizes: str, *, count: int, name: str, axis: int) -> list[str]:
        """Add a Split into `count` parts whose sizes the int64 tensor `sizes` holds."""
        results = [f"{name}/output_{i}" for i in range(count)]
        self._graph.node.append(self._helper.make_node("Split", [value, sizes], results, name=name, axis=axis))
        return results

    def serialize(self, tensors: list[Any]) -> bytes:
        """Return the .onnx file's bytes, with these initializers."""
        self._graph.initializer.extend(tensors)
        model = self._helper.make_model(
            self._graph,
            opset_imports=[self._helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="ortmulti",
        )
        result: bytes = model.SerializeToString(deterministic=True)
        return result

    def is_external(self, weight: Weight) -> bool:
        return self._placement == "external" and weight.nbytes > INLINE_BYTES

    def external_layout(self) -> tuple[list[tuple[Weight, int]], int]:
        """Where each external weight lies in the data file.

        Returns:
            The external weights with their offsets in bytes, in file order, and the file's size in bytes.
        """
        layout: list[tuple[Weight, int]] = []
        end = 0
        for weight in self.weights:
            if self.is_external(weight):
                offset = -(-end // ALIGNMENT) * ALIGNMENT
                layout.append((weight, offset))
                end = offset + weight.nbytes
        return layout, end

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights together, without padding."""
        return sum(weight.nbytes for weight in self.weights)
