"""Attention of exported encoders: a pattern of ONNX's operators becomes one operator of ONNX Runtime's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

DOMAIN = "com.microsoft"
_HEADS = [0, 2, 1, 3]
"""[batch, length, heads, width] to [batch, heads, length, width], and back."""
_MASKED = -1e8
"""A score of this or less has no weight, whatever is added to it."""
_LEAST = -1e30
"""Where a whole row is minus infinity, its softmax is not a number in some kernels."""


class _Heads(NamedTuple):
    """A tensor [batch, length, heads * width] that is split into heads.

    Attributes:
        source: Its name.
        heads: Their number.
        factor: What the heads are multiplied with.
    """

    source: str
    heads: int
    factor: float


class _Scores(NamedTuple):
    """Scores of queries and keys.

    Attributes:
        query: The queries.
        key: The keys.
        factor: What their product is multiplied with.
        biases: What is added: each by its name, or by a condition and the two names of its ``Where``. There the empty
            name stands for the scores.
    """

    query: _Heads
    key: _Heads
    factor: float
    biases: tuple[tuple[str, ...], ...]


class _Projection(NamedTuple):
    """The product of a tensor and a weight, and what is added."""

    source: str
    weight: NDArray[Any]
    bias: NDArray[Any] | None


def fuse_attention(model: ModelProto) -> int:
    """Replace attention by operators of ONNX Runtime's.

    That is ``Attention`` where the three projections have the same input: they become one. Others become
    ``MultiHeadAttention``.

    What is added to the scores stays as the graph computes it: masks, and biases of relative positions.

    Args:
        model: It is changed.

    Returns:
        How many were found.
    """
    found = _Fusion(model).apply()
    if found and all(each.domain != DOMAIN for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return found


class _Reader:
    """Reads a graph from its results to its inputs."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        self._producers = {name: node for node in graph.node for name in node.output if name}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = node.attribute[0].t

    def node(self, name: str, *kinds: str) -> NodeProto | None:
        """Return the node that has this output, if it is of one of these kinds."""
        node = self._producers.get(name)
        return node if node is not None and node.domain in ("", "ai.onnx") and node.op_type in kinds else None

    def constant(self, name: str) -> NDArray[Any] | None:
        while node := self.node(name, "Identity"):  # equal weights are written once
            name = node.input[0]
        tensor = self._constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def permuted(self, name: str, *orders: Sequence[int]) -> tuple[NodeProto, list[int]] | None:
        """Return the node that permutes dimensions in one of these ways, and how."""
        node = self.node(name, "Transpose")
        order = next((list(each.ints) for each in node.attribute if each.name == "perm"), []) if node else []
        return (node, order) if node is not None and order in map(list, orders) else None

    def scaled(self, name: str) -> tuple[str, float]:
        """Return what is multiplied with a number, and this number."""
        factor = 1.0
        while True:
            if node := self.node(name, "Identity", "Cast", "Dropout"):
                name = node.input[0]
                continue
            node = self.node(name, "Mul", "Div")
            if node is None:
                return name, factor
            for place in range(1, -1, -1):
                number = self.scalar(node.input[place])
                if number and (place == 1 or node.op_type == "Mul"):
                    factor = factor * number if node.op_type == "Mul" else factor / number
                    name = node.input[1 - place]
                    break
            else:
                return name, factor

    def scalar(self, name: str) -> float | None:
        """Evaluate a number, which may depend on the width of heads."""
        value = self.constant(name)
        if value is not None:
            return float(value.reshape(-1)[0]) if value.size == 1 else None
        if node := self.node(name, "Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"):
            return self.scalar(node.input[0])
        if node := self.node(name, "Slice", "Gather"):  # the last of a tensor's sizes
            shape, place = self.node(node.input[0], "Shape"), self.scalar(node.input[1])
            return self._last_size(shape.input[0]) if shape and place in (-1, 3) else None
        node = self.node(name, "Sqrt", "Reciprocal", "Mul", "Div", "Pow")
        if node is None:
            return None
        numbers = [self.scalar(each) for each in node.input]
        if any(each is None for each in numbers):
            return None
        first, second = numbers[0] or 0.0, numbers[-1] or 0.0
        try:
            return {
                "Sqrt": lambda: math.sqrt(first),
                "Reciprocal": lambda: 1 / first,
                "Mul": lambda: first * second,
                "Div": lambda: first / second,
                "Pow": lambda: float(first**second),
            }[node.op_type]()
        except (ArithmeticError, ValueError, TypeError):
            return None

    def _last_size(self, name: str) -> int | None:
        name, _ = self.scaled(name)
        if found := self.permuted(name, _HEADS):
            return self._last_size(found[0].input[0])
        if node := self.node(name, "Reshape"):
            size = (self.sizes(node.input[1]) or [None])[-1]
            return size if size and size > 0 else None
        if node := self.node(name, "Add"):
            bias = next((value for each in node.input if (value := self.constant(each)) is not None), None)
            return None if bias is None or bias.ndim != 1 else len(bias)
        if node := self.node(name, "MatMul"):
            weight = self.constant(node.input[1])
            return None if weight is None else weight.shape[-1]
        return None

    def sizes(self, name: str) -> list[int | None]:
        """Return the sizes of a shape; None for those that are computed."""
        value = self.constant(name)
        if value is not None:
            return [int(each) for each in value.reshape(-1)]
        if node := self.node(name, "Concat"):
            return [size for each in node.input for size in (self.sizes(each) or [None])]
        return []

    def heads(self, name: str, *, turned: bool = False) -> _Heads | None:
        """Find how a tensor [batch, heads, length, width] was made; ``turned``: [batch, heads, width, length]."""
        name, factor = self.scaled(name)
        orders = ([0, 2, 3, 1],) if turned else (_HEADS,)
        if turned and (found := self.permuted(name, [0, 1, 3, 2])):
            inner = self.heads(found[0].input[0])
            return inner and inner._replace(factor=inner.factor * factor)
        if turned and (node := self.node(name, "Reshape")):  # over three dimensions, and back
            flat = self.permuted(node.input[0], [0, 2, 1])
            node = self.node(flat[0].input[0], "Reshape") if flat else None
            inner = self.heads(node.input[0]) if node else None
            return inner and inner._replace(factor=inner.factor * factor)
        permuted = self.permuted(name, *orders)
        if permuted is None:
            return None
        name, more = self.scaled(permuted[0].input[0])
        node = self.node(name, "Reshape")
        sizes = self.sizes(node.input[1]) if node else []
        if node is None or len(sizes) != 4:
            return None
        source, most = self.scaled(node.input[0])
        heads, width = (size if size and size > 0 else 0 for size in sizes[2:])
        if not (heads and width):
            whole = self._last_size(source) or 0
            heads = heads or (whole // width if width else 0)
        return _Heads(source, heads, factor * more * most) if heads else None

    def scores(self, name: str) -> _Scores | None:
        """Find how the scores were made that a softmax takes."""
        name, factor = self.scaled(name)
        if node := self.node(name, "MatMul"):
            query, key = self.heads(node.input[0]), self.heads(node.input[1], turned=True)
            if query is None or key is None or query.heads != key.heads:
                return None
            return _Scores(query, key, factor * query.factor * key.factor, ())
        node = self.node(name, "Add", "Where")
        if node is None or factor != 1.0:
            return None
        *condition, first, second = node.input
        for scores, other, bias in ((first, second, ("", second)), (second, first, (first, ""))):
            least = self.scalar(other) if condition else None
            if condition and (least is None or least > _MASKED):
                continue
            if inner := self.scores(scores):
                return inner._replace(biases=(*inner.biases, (*condition, *bias) if condition else (other,)))
        return None

    def projection(self, name: str) -> _Projection | None:
        bias = None
        if node := self.node(name, "Add"):
            for place in (0, 1):
                value = self.constant(node.input[place])
                if value is not None and value.ndim == 1:
                    bias, name = value, node.input[1 - place]
                    break
        node = self.node(name, "MatMul")
        weight = self.constant(node.input[1]) if node else None
        if node is None or weight is None or weight.ndim != 2:
            return None
        return _Projection(node.input[0], weight, bias)


@dataclass(frozen=True)
class _Bias:
    """What attention adds to the scores.

    Attributes:
        name: Its name.
        empty: The name of the rows that see nothing, whose result is 0; empty if there are none.
    """

    name: str = ""
    empty: str = ""


class _Fusion(_Reader):
    def __init__(self, model: ModelProto) -> None:
        super().__init__(model.graph)
        self._opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
        self._new: list[NodeProto] = []
        self._biases: dict[tuple[tuple[tuple[str, ...], ...], bool], _Bias] = {}
        self._number = 0

    def apply(self) -> int:
        nodes: list[NodeProto] = []
        found = 0
        for node in self.graph.node:
            if node.op_type != "Reshape" or not self._replace(node):
                nodes.append(node)
                continue
            found += 1
            nodes += self._new
            self._new.clear()
            if nodes[-1].output[0] != node.output[0]:
                nodes.append(node)
        if found:
            self._keep(nodes)
        return found

    def _replace(self, end: NodeProto) -> bool:
        """Replace the attention whose result this node brings into three dimensions."""
        permuted = self.permuted(end.input[0], _HEADS)
        product = self.node(permuted[0].input[0], "MatMul") if permuted else None
        value = self.heads(product.input[1]) if product else None
        if product is None or value is None or value.factor != 1.0:
            return False
        name, guarded = product.input[0], False
        if guard := self.node(name, "Where"):  # zeros where the softmax is not a number
            name, guarded = guard.input[2], True
            test = self.node(guard.input[0], "IsNaN")
            if test is None or test.input[0] != name or self.scalar(guard.input[1]) != 0.0:
                return False
        name, factor = self.scaled(name)
        softmax = self.node(name, "Softmax")
        default = -1 if self._opset >= 13 else 1
        axis = next((each.i for each in softmax.attribute if each.name == "axis"), default) if softmax else None
        scores = self.scores(softmax.input[0]) if softmax and axis in (-1, 3) and factor == 1.0 else None
        if scores is None or scores.query.heads != value.heads:
            return False
        end.input[0] = self._make(scores, value.source, guarded)
        sizes, width = self.sizes(end.input[1]), self._last_size(value.source)
        if len(sizes) == 3 and sizes[2] in (-1, width):
            self._new[-1].output[0] = end.output[0]  # which has this shape already
        return True

    def _make(self, scores: _Scores, value: str, guarded: bool) -> str:
        sources = [scores.query.source, scores.key.source, value]
        bias = self._bias(scores.biases, sources[0], guarded) if scores.biases else _Bias()
        if merged := self._merged(sources):
            kind, inputs = "Attention", [*merged, "", "", bias.name]
        else:
            kind, inputs = "MultiHeadAttention", [*sources, "", "", bias.name]
        result = self._add(kind, inputs, domain=DOMAIN, num_heads=scores.query.heads, scale=scores.factor)
        if bias.empty:
            zero = self._constant(np.zeros(1, self._dtype(sources)))
            result = self._add("Where", [bias.empty, zero, result])
        return result

    def _merged(self, sources: Iterable[str]) -> list[str]:
        """Return the input of all three projections, and one weight and bias in place of theirs."""
        parts = [self.projection(each) for each in sources]
        first = parts[0]
        known = [part for part in parts if part is not None]
        if (
            first is None
            or len(known) < 3
            or any(
                (part.source, part.weight.shape, part.weight.dtype)
                != (first.source, first.weight.shape, first.weight.dtype)
                for part in known
            )
        ):
            return []
        zeros = np.zeros(first.weight.shape[1], first.weight.dtype)
        biases = [zeros if part.bias is None else part.bias for part in known]
        if any(bias.shape != zeros.shape for bias in biases):
            return []
        weight = self._constant(np.concatenate([part.weight for part in known], axis=1))
        return [first.source, weight, self._constant(np.concatenate(biases))]

    def _bias(self, biases: tuple[tuple[str, ...], ...], query: str, guarded: bool) -> _Bias:
        """Bring what is added to the scores into four dimensions, the third of which has the queries' length."""
        if made := self._biases.get((biases, guarded)):
            return made
        dtype = self._dtype([query])
        parts: list[str] = []
        for part in biases:
            if len(part) > 1:
                zero = self._constant(np.zeros(1, dtype))
                part = (self._add("Where", [self._unexpanded(part[0]), *(each or zero for each in part[1:])]),)
            parts += part
        name, empty = parts[0], ""
        for other in parts[1:]:
            name = self._add("Add", [name, other])
        one = self._constant(np.ones(1, np.int64))
        length = self._add("Gather", [self._add("Shape", [query]), one], axis=0)
        shape = self._add("Concat", [one, one, length, one], axis=0)
        name = self._add("Expand", [name, shape])
        if guarded:
            axes = np.array([1, 3])
            if self._opset < 18:
                largest = self._add("ReduceMax", [name], axes=axes.tolist(), keepdims=0)
            else:
                largest = self._add("ReduceMax", [name, self._constant(axes)], keepdims=0)
            largest = self._add("Unsqueeze", [largest, self._constant(np.array([2]))])
            empty = self._add("Equal", [largest, self._constant(np.array([-np.inf], dtype))])
            name = self._add("Max", [name, self._constant(np.array([_LEAST], dtype))])
        self._biases[biases, guarded] = made = _Bias(name, empty)
        return made

    def _unexpanded(self, name: str) -> str:
        """Return a condition before it was brought into the shape of the scores, which then need not be there."""
        if node := self.node(name, "Expand"):
            return str(node.input[0])
        cast = self.node(name, "Cast")
        inner = self.node(cast.input[0], "Expand") if cast else None
        return self._add("Cast", [inner.input[0]], to=TensorProto.BOOL) if inner else name

    def _dtype(self, sources: Iterable[str]) -> Any:
        part = next(iter(map(self.projection, sources)))
        return np.dtype(np.float32) if part is None else part.weight.dtype

    def _name(self) -> str:
        self._number += 1
        return f"ortmulti_attention_{self._number}"

    def _constant(self, value: NDArray[Any]) -> str:
        tensor = numpy_helper.from_array(value, self._name())
        self.graph.initializer.append(tensor)
        self._constants[tensor.name] = tensor
        return str(tensor.name)

    def _add(self, kind: str, inputs: Iterable[str], **attributes: Any) -> str:
        result = self._name()
        self._new.append(helper.make_node(kind, list(inputs), [result], result, **attributes))
        return result

    def _keep(self, nodes: list[NodeProto]) -> None:
        """Keep of these nodes, and of the weights, what the results need."""
        used = {output.name for output in self.graph.output}
        kept = []
        for node in reversed(nodes):
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


def _inputs(node: NodeProto) -> Iterable[str]:
    """Yield what a node reads, and the nodes of its own graphs."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _inputs(inner)
            yield from (output.name for output in graph.output)
