"""A model's graph that is read and changed: nodes by their results, weights by their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["DOMAIN", "Graph"]

DOMAIN = "com.microsoft"
"""That of ONNX Runtime's own operators."""


class Graph:
    """The graph of a model. New nodes are collected until one of its users puts them in their place.

    Args:
        model: It is changed.
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.graph = model.graph
        self.opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
        self.new: list[NodeProto] = []
        self.producers = {name: node for node in self.graph.node for name in node.output if name}
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.constants[node.output[0]] = node.attribute[0].t
        self._taken = {name for node in self.graph.node for name in (node.name, *node.output)} | set(self.constants)
        self._taken |= {value.name for value in self.graph.input}
        self._number = 0

    def node(self, name: str, *kinds: str) -> NodeProto | None:
        """Return the node that has this output, if it is of one of these kinds."""
        node = self.producers.get(name)
        return node if node is not None and node.domain in ("", "ai.onnx") and node.op_type in kinds else None

    def constant(self, name: str) -> NDArray[Any] | None:
        tensor = self._tensor(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def shape(self, name: str) -> list[int] | None:
        """Return the sizes of a weight."""
        tensor = self._tensor(name)
        return None if tensor is None else list(tensor.dims)

    def weight(self, value: Any, dtype: Any = None) -> str:
        """Add a weight, and return its name."""
        tensor = numpy_helper.from_array(np.asarray(value, dtype), self._name())
        self.graph.initializer.append(tensor)
        self.constants[tensor.name] = tensor
        return str(tensor.name)

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Make a node, and return its first result."""
        results = [self._name() for _ in range(outputs)]
        self.new.append(helper.make_node(kind, inputs, results, results[0], **attributes))
        if attributes.get("domain") == DOMAIN and all(each.domain != DOMAIN for each in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        return results[0]

    def largest(self, name: str, axes: list[int]) -> str:
        """Make the largest elements over some axes, which are an input since opset 18, and an attribute before."""
        if self.opset < 18:
            return self.add("ReduceMax", name, axes=axes, keepdims=0)
        return self.add("ReduceMax", name, self.weight(axes, np.int64), keepdims=0)

    def keep(self, nodes: Iterable[NodeProto]) -> None:
        """Keep of these nodes, and of the weights, what the results need."""
        used = {output.name for output in self.graph.output}
        kept = []
        for node in reversed(list(nodes)):
            if used.intersection(node.output):
                used.update(_inputs(node))
                kept.append(node)
        weights = [tensor for tensor in self.graph.initializer if tensor.name in used]
        known = used.union(*(node.output for node in kept))
        values = [value for value in self.graph.value_info if value.name in known]
        del self.graph.node[:], self.graph.initializer[:], self.graph.value_info[:]
        self.graph.node.extend(reversed(kept))
        self.graph.initializer.extend(weights)
        self.graph.value_info.extend(values)

    def _tensor(self, name: str) -> TensorProto | None:
        while node := self.node(name, "Identity"):  # equal weights are written once
            name = node.input[0]
        return self.constants.get(name)

    def _name(self) -> str:
        while (name := f"ortmulti_{self._number}") in self._taken:
            self._number += 1
        self._taken.add(name)
        return name


def _inputs(node: NodeProto) -> Iterable[str]:
    """Yield what a node reads, and the nodes of its own graphs."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _inputs(inner)
            yield from (output.name for output in graph.output)
