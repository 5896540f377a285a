"""Encoders without padding: what is computed for each token is computed for the real ones alone.

On GPUs alone: no other device has ONNX Runtime's operators for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from ortmulti.errors import NotOptimizable
from ortmulti.optimized.attention_pattern import Reader
from ortmulti.optimized.graph import DOMAIN

__all__ = ["remove_padding"]

_EACH_ELEMENT = {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Neg", "Exp", "Erf", "Tanh", "Sigmoid"}
_EACH_ELEMENT |= {"Relu", "Softplus", "Clip", "Cast", "Identity", "Dropout"}
_EACH_ELEMENT |= {"Gelu", "FastGelu", "QuickGelu", "BiasGelu"}
_OVER_LAST = {"LayerNormalization", "SimplifiedLayerNormalization", "ReduceMean"}
_OVER_LAST |= {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
_PLACES = {"Attention": ("PackedAttention", 3), "MultiHeadAttention": ("PackedMultiHeadAttention", 4)}
"""By operator: that without padding, and how many of the inputs it has, too."""
_OPSET = 13
_ATTRIBUTES = {"num_heads", "scale", "qkv_hidden_sizes", "mask_filter_value"}


def remove_padding(model: ModelProto) -> int:
    """Have an encoder compute real tokens alone: those for which the mask is not 0, wherever they are.

    The outputs are the same for every mask with a real token. So none may have an element for each token.

    Args:
        model: With ONNX Runtime's operators of attention. It is changed.

    Returns:
        The number of these operators.

    Raises:
        NotOptimizable: It has no mask, or computes something else between tokens.
    """
    return _Packing(model).apply()


class _Packing(Reader):
    def __init__(self, model: ModelProto) -> None:
        super().__init__(model)
        self._packed: set[str] = set()  # [real tokens, n]
        self._restored: dict[str, str] = {}
        self._mask = self._offsets = self._cumulated = self._place = ""

    def apply(self) -> int:
        attentions = [node for node in self.graph.node if node.domain == DOMAIN and node.op_type in _PLACES]
        if not attentions or self.opset < _OPSET:
            raise NotOptimizable("it has no attention" if self.opset >= _OPSET else f"its opset is {self.opset}")
        self._mask = self._find_mask(attentions)
        lengths = {dim.dim_param for dim in _dims(self._input(self._mask))[1:]}
        for output in self.graph.output:
            if lengths & {dim.dim_param for dim in _dims(output)[1:]}:
                raise NotOptimizable(f"its output '{output.name}' has an element for each token, also for padding")
        first, width = self._source(attentions[0])
        nodes: list[NodeProto] = []
        packed, real = 0, ""
        for node in list(self.graph.node):
            if first in node.input and node.op_type != "Shape":
                real = real or self._pack(first, width)
                self._rename(node, {first: real})
            if self._packed.intersection(node.input):
                packed += self._convert(node)
            nodes += self.new
            self.new.clear()
            nodes.append(node)
        if packed < len(attentions):
            raise NotOptimizable(f"{len(attentions) - packed} of {len(attentions)} operators of attention need padding")
        self.keep(nodes)
        return packed

    # --- What is read ------------------------------------------------------------------------------------------------

    def _input(self, name: str) -> Any:
        return next(value for value in self.graph.input if value.name == name)

    def _find_mask(self, attentions: list[NodeProto]) -> str:
        """Return the input which alone decides what attention leaves out."""
        found: set[str] = set()
        for node in attentions:
            places = range(_PLACES[node.op_type][1], len(node.input))
            biases = [node.input[place] for place in places if node.input[place]]
            found |= self._leaves(biases)
            if not biases:
                found.add("")
        mask = found.pop() if len(found) == 1 else ""
        if "mask" not in mask.lower():
            raise NotOptimizable("what attention leaves out is not decided by a mask alone")
        if len(_dims(self._input(mask))) != 2:
            raise NotOptimizable(f"its mask '{mask}' has no form [rows, tokens]")
        return mask

    def _leaves(self, names: list[str]) -> set[str]:
        """Return the model's inputs on whose values these depend."""
        inputs = {value.name for value in self.graph.input} - self.constants.keys()
        waiting, seen = list(names), set(names)
        while waiting:
            node = self.producers.get(waiting.pop())
            if node is None or node.op_type == "Shape":
                continue
            # The first output of this one are vectors; the second comes from the mask alone.
            sources = node.input[7:8] if node.op_type == "EmbedLayerNormalization" else node.input
            waiting += (more := set(filter(None, sources)) - seen)
            seen |= more
        return seen & inputs

    def _source(self, attention: NodeProto) -> tuple[str, int]:
        """Return the vectors that the first layer takes, and their width."""
        if attention.op_type == "Attention":
            source, shape = str(attention.input[0]), self.shape(attention.input[1])
        elif projection := self.projection(attention.input[0]):
            source, shape = projection.source, list(projection.weight.shape)
        else:
            shape = None
        if not shape:
            raise NotOptimizable("its first queries are made by no product with a weight")
        return source, shape[0]

    # --- What is made ------------------------------------------------------------------------------------------------

    def _pack(self, first: str, width: int) -> str:
        real = self.add("Cast", self._mask, to=TensorProto.BOOL)
        ones = self.add("Cast", real, to=TensorProto.INT32)
        second = self.weight([1], np.int64)
        # ONNX Runtime takes the first tokens of each row for the real ones: right for attention, which knows no order.
        marks = self.add("Unsqueeze", self.add("Cast", real, to=TensorProto.FLOAT), self.weight([2], np.int64))
        counts = self.add("ReduceSum", ones, second, keepdims=0)
        self.add("RemovePadding", marks, counts, outputs=4, domain=DOMAIN)
        _, self._offsets, self._cumulated, _ = self.new[-1].output
        before = self.add("Slice", self._cumulated, self.weight([0], np.int64), self.weight([-1], np.int64))
        within = self.add("CumSum", ones, self.weight(1, np.int64))
        place = self.add("Add", within, self.add("Unsqueeze", before, second))
        place = self.add("Sub", place, self.weight([1], np.int32))
        self._place = self.add("Max", place, self.weight([0], np.int32))  # where there is no token: that of another
        rows = self.add("Reshape", first, self.weight([-1, width], np.int64))
        packed = self.add("Compress", rows, self.add("Reshape", real, self.weight([-1], np.int64)), axis=0)
        self._packed.add(packed)
        return packed

    def _convert(self, node: NodeProto) -> int:
        """Have a node that reads real tokens compute them alone, or give it those of padding back."""
        if node.domain == DOMAIN and node.op_type in _PLACES:
            return self._attend(node)
        if self._is_each(node):
            self._packed.update(filter(None, node.output))
        else:
            self._rename(node, {name: self._with_padding(name) for name in self._packed.intersection(node.input)})
        return 0

    def _attend(self, node: NodeProto) -> int:
        kind, count = _PLACES[node.op_type]
        sources = node.input[: 1 if kind == "PackedAttention" else 3]
        if not self._packed.issuperset(sources):
            raise NotOptimizable("its attention reads what is not made of its tokens")
        node.op_type = kind
        inputs = [*node.input[:count], *[""] * (count - len(node.input)), self._offsets, self._cumulated]
        del node.input[:]
        node.input.extend(inputs)
        attributes = [each for each in node.attribute if each.name in _ATTRIBUTES]
        if kind == "PackedAttention" and not node.input[2]:
            weight = self.constant(node.input[1])
            if weight is None:
                raise NotOptimizable("the weights of its attention are computed")
            node.input[2] = self.weight(np.zeros(weight.shape[1], weight.dtype))
        del node.attribute[:]
        node.attribute.extend(attributes)
        self._packed.add(node.output[0])
        return 1

    def _is_each(self, node: NodeProto) -> bool:
        """Whether a node computes each token alone. If so, its axis becomes the last one."""
        kind, inputs = node.op_type, [name for name in node.input if name]
        if kind == "MatMul":
            return inputs[0] in self._packed and len(self.shape(inputs[1]) or ()) == 2
        if kind == "Where" and inputs[2] in self._packed and self._leaves(inputs[:1]) == {self._mask}:
            node.op_type = "Identity"  # zeros for tokens that see nothing
            del node.input[:2]
            return True
        if kind == "ReduceMean" and len(inputs) == 2:
            axes = self.constant(inputs[1])
            if axes is None or axes.tolist() not in ([-1], [2]):
                return False
            node.input[1] = self.weight([-1], np.int64)
            return True
        if any(name not in self._packed and not self._is_vector(name) for name in inputs):
            return False
        return kind in _EACH_ELEMENT or (kind in _OVER_LAST and self._on_last(node))

    def _is_vector(self, name: str) -> bool:
        """Whether it is a weight that is the same for all tokens."""
        shape = self.shape(name)
        return shape is not None and (len(shape) < 2 or (len(shape) == 2 and math.prod(shape) == 1))

    @staticmethod
    def _on_last(node: NodeProto) -> bool:
        for attribute in node.attribute:
            if attribute.name == "axis" and attribute.i not in (-1, 2):
                return False
            if attribute.name == "axes" and list(attribute.ints) not in ([-1], [2]):
                return False
            if attribute.name == "keepdims" and not attribute.i:
                return False
        kept = [each for each in node.attribute if each.name not in ("axis", "axes")]
        name = "axes" if node.op_type == "ReduceMean" else "axis"
        if node.op_type in ("LayerNormalization", "SimplifiedLayerNormalization", "ReduceMean"):
            kept.append(helper.make_attribute(name, [-1] if name == "axes" else -1))
        del node.attribute[:]
        node.attribute.extend(kept)
        return True

    def _with_padding(self, name: str) -> str:
        if name not in self._restored:
            self._restored[name] = self.add("Gather", name, self._place, axis=0)
        return self._restored[name]

    @staticmethod
    def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)


def _dims(value: Any) -> list[Any]:
    return list(value.type.tensor_type.shape.dim)
