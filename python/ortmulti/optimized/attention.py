"""Attention of exported encoders: a pattern of ONNX's operators becomes one operator of ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from ortmulti.optimized.attention_pattern import HEADS, Reader, Scores
from ortmulti.optimized.graph import DOMAIN

_LEAST = -1e30
"""Where a whole row is minus infinity, its softmax is not a number in some kernels."""


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
    return _Fusion(model).apply()


@dataclass(frozen=True)
class _Bias:
    """What attention adds to the scores.

    Attributes:
        name: Its name.
        empty: The name of the rows that see nothing, whose result is 0; empty if there are none.
    """

    name: str = ""
    empty: str = ""


class _Fusion(Reader):
    def __init__(self, model: ModelProto) -> None:
        super().__init__(model)
        self._biases: dict[tuple[tuple[tuple[str, ...], ...], bool], _Bias] = {}

    def apply(self) -> int:
        nodes: list[NodeProto] = []
        found = 0
        for node in self.graph.node:
            if node.op_type != "Reshape" or not self._replace(node):
                nodes.append(node)
                continue
            found += 1
            nodes += self.new
            self.new.clear()
            if nodes[-1].output[0] != node.output[0]:
                nodes.append(node)
        if found:
            self.keep(nodes)
        return found

    def _replace(self, end: NodeProto) -> bool:
        """Replace the attention whose result this node brings into three dimensions."""
        permuted = self.permuted(end.input[0], HEADS)
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
        default = -1 if self.opset >= 13 else 1
        axis = next((each.i for each in softmax.attribute if each.name == "axis"), default) if softmax else None
        scores = self.scores(softmax.input[0]) if softmax and axis in (-1, 3) and factor == 1.0 else None
        if scores is None or scores.query.heads != value.heads:
            return False
        end.input[0] = self._make(scores, value.source, guarded)
        sizes, width = self.sizes(end.input[1]), self.last_size(value.source)
        if len(sizes) == 3 and sizes[2] in (-1, width):
            self.new[-1].output[0] = end.output[0]  # which has this shape already
        return True

    def _make(self, scores: Scores, value: str, guarded: bool) -> str:
        sources = [scores.query.source, scores.key.source, value]
        bias = self._bias(scores.biases, sources[0], guarded) if scores.biases else _Bias()
        if merged := self._merged(sources):
            kind, inputs = "Attention", [*merged, "", "", bias.name]
        else:
            kind, inputs = "MultiHeadAttention", [*sources, "", "", bias.name]
        result = self.add(kind, *inputs, domain=DOMAIN, num_heads=scores.query.heads, scale=scores.factor)
        if bias.empty:
            zero = self.weight(np.zeros(1, self._dtype(sources)))
            result = self.add("Where", bias.empty, zero, result)
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
        weight = self.weight(np.concatenate([part.weight for part in known], axis=1))
        return [first.source, weight, self.weight(np.concatenate(biases))]

    def _bias(self, biases: tuple[tuple[str, ...], ...], query: str, guarded: bool) -> _Bias:
        """Bring what is added to the scores into four dimensions, the third of which has the queries' length."""
        if made := self._biases.get((biases, guarded)):
            return made
        dtype = self._dtype([query])
        parts: list[str] = []
        for part in biases:
            if len(part) > 1:
                zero = self.weight(np.zeros(1, dtype))
                part = (self.add("Where", self._unexpanded(part[0]), *(each or zero for each in part[1:])),)
            parts += part
        name, empty = parts[0], ""
        for other in parts[1:]:
            name = self.add("Add", name, other)
        one = self.weight(np.ones(1, np.int64))
        length = self.add("Gather", self.add("Shape", query), one, axis=0)
        shape = self.add("Concat", one, one, length, one, axis=0)
        name = self.add("Expand", name, shape)
        if guarded:
            largest = self.add("Unsqueeze", self.largest(name, [1, 3]), self.weight(np.array([2])))
            lowest = self.weight(np.array([-np.inf], dtype))
            empty = self.add("Equal", largest, lowest)
            masked = self.add("Equal", name, lowest)
            name = self.add("Where", masked, self.weight(np.array([_LEAST], dtype)), name)
        self._biases[biases, guarded] = made = _Bias(name, empty)
        return made

    def _unexpanded(self, name: str) -> str:
        """Return a condition before it was brought into the shape of the scores, which then need not be there."""
        if node := self.node(name, "Expand"):
            return str(node.input[0])
        cast = self.node(name, "Cast")
        inner = self.node(cast.input[0], "Expand") if cast else None
        return self.add("Cast", inner.input[0], to=TensorProto.BOOL) if inner else name

    def _dtype(self, sources: Iterable[str]) -> Any:
        part = next(iter(map(self.projection, sources)))
        return np.dtype(np.float32) if part is None else part.weight.dtype
