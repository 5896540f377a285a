"""The pattern of attention in an exported graph: heads, scores and projections, found from results to inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray
from onnx import NodeProto

from ortmulti.optimized.graph import Graph

HEADS = [0, 2, 1, 3]
"""[batch, length, heads, width] to [batch, heads, length, width], and back."""
_MASKED = -1e8
"""A score of this or less has no weight, whatever is added to it."""
_DEPTH = 10
"""So many operators are followed at most: graphs of strangers may have any number."""


class Heads(NamedTuple):
    """A tensor [batch, length, heads * width] that is split into heads.

    Attributes:
        source: Its name.
        heads: Their number.
        factor: What the heads are multiplied with.
    """

    source: str
    heads: int
    factor: float


class Scores(NamedTuple):
    """Scores of queries and keys.

    Attributes:
        query: The queries.
        key: The keys.
        factor: What their product is multiplied with.
        biases: What is added: each by its name, or by a condition and the two names of its ``Where``. There the empty
            name stands for the scores.
    """

    query: Heads
    key: Heads
    factor: float
    biases: tuple[tuple[str, ...], ...]


class Projection(NamedTuple):
    """The product of a tensor and a weight, and what is added."""

    source: str
    weight: NDArray[Any]
    bias: NDArray[Any] | None


class Reader(Graph):
    """Reads a graph from its results to its inputs."""

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

    def scalar(self, name: str, depth: int = _DEPTH) -> float | None:
        """Evaluate a number, which may depend on the width of heads."""
        if depth == 0:
            return None
        value = self.constant(name)
        if value is not None:
            return float(value.reshape(-1)[0]) if value.size == 1 else None
        if node := self.node(name, "Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"):
            return self.scalar(node.input[0], depth - 1)
        if node := self.node(name, "Slice", "Gather"):  # the last of a tensor's sizes
            shape = self.node(node.input[0], "Shape")
            place = self.scalar(node.input[1], depth - 1) if len(node.input) > 1 else None
            return self.last_size(shape.input[0]) if shape and place in (-1, 3) else None
        node = self.node(name, "Sqrt", "Reciprocal", "Mul", "Div", "Pow")
        if node is None:
            return None
        numbers = [self.scalar(each, depth - 1) for each in node.input]
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

    def last_size(self, name: str) -> int | None:
        name, _ = self.scaled(name)
        if found := self.permuted(name, HEADS):
            name, _ = self.scaled(found[0].input[0])
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
            parts = [self.constant(each) for each in node.input]
            return [size for part in parts for size in ([None] if part is None else map(int, part.reshape(-1)))]
        return []

    def heads(self, name: str, *, turned: bool = False) -> Heads | None:
        """Find how a tensor [batch, heads, length, width] was made; ``turned``: [batch, heads, width, length]."""
        name, factor = self.scaled(name)
        orders = ([0, 2, 3, 1],) if turned else (HEADS,)
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
            whole = self.last_size(source) or 0
            heads = heads or (whole // width if width else 0)
        return Heads(source, heads, factor * more * most) if heads else None

    def scores(self, name: str, depth: int = _DEPTH) -> Scores | None:
        """Find how the scores were made that a softmax takes."""
        name, factor = self.scaled(name)
        if node := self.node(name, "MatMul"):
            query, key = self.heads(node.input[0]), self.heads(node.input[1], turned=True)
            if query is None or key is None or query.heads != key.heads:
                return None
            return Scores(query, key, factor * query.factor * key.factor, ())
        node = self.node(name, "Add", "Where")
        if node is None or factor != 1.0 or depth == 0:
            return None
        *condition, first, second = node.input
        for scores, other, bias in ((first, second, ("", second)), (second, first, (first, ""))):
            least = self.scalar(other) if condition else None
            if condition and (least is None or least > _MASKED):
                continue
            if inner := self.scores(scores, depth - 1):
                return inner._replace(biases=(*inner.biases, (*condition, *bias) if condition else (other,)))
        return None

    def projection(self, name: str) -> Projection | None:
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
        return Projection(node.input[0], weight, bias)
