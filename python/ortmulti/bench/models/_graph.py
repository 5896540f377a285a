"""A model as plain data: nodes, weights and their statistics, without the onnx package and without any bytes.

A model is described completely before anything is written. So its size is known in advance, and a model larger than
memory is never in memory as a whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Node:
    """One operator of the default ONNX domain."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Value:
    """An input, an output or an intermediate value. A dimension with a name is dynamic."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]


Placement = Literal["inline", "external"]


@dataclass
class Graph:
    """The graph under construction; every method that adds something returns the name of the value it makes."""

    name: str
    placement: Placement = "inline"
    nodes: list[Node] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def input(self, name: str, dtype: type[np.generic], shape: tuple[int | str, ...]) -> str:
        self.inputs.append(Value(name, np.dtype(dtype), shape))
        return name

    def output(self, name: str, dtype: type[np.generic], shape: tuple[int | str, ...]) -> None:
        self.outputs.append(Value(name, np.dtype(dtype), shape))

    def declare(self, name: str, dtype: type[np.generic], shape: tuple[int | str, ...]) -> None:
        """Declare the shape of an intermediate value that ONNX's inference does not find."""
        self.values.append(Value(name, np.dtype(dtype), shape))

    def weight(
        self, name: str, shape: tuple[int, ...], dtype: type[np.generic], *, std: float, mean: float = 0.0
    ) -> str:
        self.weights.append(Weight(name, shape, np.dtype(dtype), Normal(mean, std)))
        return name

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self.weights.append(Weight(name, array.shape, array.dtype, array))
        return name

    def node(self, op: str, *inputs: str, name: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output. The output has the node's name, or `output`."""
        result = output or f"{name}/output"
        self.nodes.append(Node(op, name, inputs, (result,), attributes))
        return result

    def split(self, value: str, sizes: str, *, count: int, name: str, axis: int) -> tuple[str, ...]:
        """Add a Split into `count` parts whose sizes the int64 tensor `sizes` holds."""
        results = tuple(f"{name}/output_{i}" for i in range(count))
        self.nodes.append(Node("Split", name, (value, sizes), results, {"axis": axis}))
        return results

    def is_external(self, weight: Weight) -> bool:
        return self.placement == "external" and weight.nbytes > INLINE_BYTES

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
