"""Small text encoders whose attention is written as exporters write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, WIDTH, TOKENS, LONGEST = 4, 8, 60, 130
HIDDEN = HEADS * WIDTH
LEAST = float(np.finfo(np.float32).min)


class Encoder:
    """Writes an encoder.

    Args:
        form: ``"eager"``: scores are divided. ``"sdpa"``: queries and keys are multiplied with a root that is computed
            from their sizes. ``"flat"``: as sdpa, and keys are turned in three dimensions.
        mask: ``"added"``: [batch, 1, 1, length]. ``"guarded"``: minus infinity, and zeros for what is not a number.
            ``"where"``: scores are replaced. ``"none"``.
        shared: Whether the projections have the same input.
        relative: Whether a bias of relative positions is added, too.
    """

    def __init__(self, form: str, mask: str, *, shared: bool = True, relative: bool = False, layers: int = 2) -> None:
        self._form, self._mask, self._shared, self._relative = form, mask, shared, relative
        self._layers = layers
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype), f"constant_{len(self._weights)}"))
        return str(self._weights[-1].name)

    def weight(self, *shape: int) -> str:
        return self.constant(self._random.standard_normal(shape) / np.sqrt(shape[0]))

    def sizes(self, *sizes: int) -> str:
        return self.constant(sizes, np.int64)

    def proto(self, opset: int = 17) -> onnx.ModelProto:
        x = self.add("Gather", self.weight(TOKENS, HIDDEN), "input_ids")
        length = self.add("Gather", self.add("Shape", "input_ids"), self.sizes(1))
        steps = self.add("Slice", self.constant(np.arange(LONGEST), np.int64), self.sizes(0), length, self.sizes(0))
        x = self.add("Add", x, self.add("Gather", self.weight(LONGEST, HIDDEN), steps))
        biases = self._biases(steps)
        for _ in range(self._layers):
            x = self._norm(self.add("Add", x, self._attention(x, biases)))
            inner = self.add("Relu", self.add("MatMul", x, self.weight(HIDDEN, 2 * HIDDEN)))
            x = self._norm(self.add("Add", x, self.add("MatMul", inner, self.weight(2 * HIDDEN, HIDDEN))))
        self.add("Identity", x)
        self._nodes[-1].output[0] = "last_hidden_state"
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in ["input_ids", "attention_mask"][: 2 - (self._mask == "none")]
        ]
        output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", HIDDEN])
        graph = helper.make_graph(self._nodes, "encoder", inputs, [output], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    def _norm(self, x: str) -> str:
        return self.add(
            "LayerNormalization", x, self.constant(np.ones(HIDDEN)), self.constant(np.zeros(HIDDEN)), axis=-1
        )

    def _biases(self, steps: str) -> list[str]:
        """What is added to the scores; for ``where`` the condition alone."""
        relative = []
        if self._relative:
            apart = self.add(
                "Sub", self.add("Unsqueeze", steps, self.sizes(0)), self.add("Unsqueeze", steps, self.sizes(1))
            )
            near = self.add("Min", self.add("Abs", apart), self.constant(31, np.int64))
            by_head = self.add("Transpose", self.add("Gather", self.weight(32, HEADS), near), perm=[2, 0, 1])
            relative = [self.add("Unsqueeze", by_head, self.sizes(0))]
        if self._mask == "none":
            return relative
        wide = self.add("Unsqueeze", "attention_mask", self.sizes(1, 2))
        if self._mask == "added":
            real = self.add("Cast", wide, to=TensorProto.FLOAT)
            return [*relative, self.add("Mul", self.add("Sub", self.constant(1), real), self.constant(LEAST))]
        real = self.add("Cast", wide, to=TensorProto.BOOL)
        if self._mask == "where":
            return [*relative, self.add("Not", real)]
        return [*relative, self.add("Where", real, self.constant(0), self.constant(-np.inf))]

    def _attention(self, x: str, biases: list[str]) -> str:
        sources = [x if self._shared or not part else self.add("Tanh", x) for part in range(3)]
        parts = [
            self.add(
                "Reshape",
                self.add("Add", self.weight(HIDDEN), self.add("MatMul", source, self.weight(HIDDEN, HIDDEN))),
                self.sizes(0, 0, HEADS, WIDTH) if self._form == "eager" else self.sizes(0, -1, HEADS, WIDTH),
            )
            for source in sources
        ]
        query, key, value = (self.add("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
        if self._form == "eager":
            turned = self.add("Transpose", parts[1], perm=[0, 2, 3, 1])
            scores = self.add("Div", self.add("MatMul", query, turned), self.constant(np.sqrt(WIDTH)))
        else:
            shape = self.add("Shape", query)
            last = self.add("Slice", shape, self.sizes(-1), self.sizes(2**62))
            root = self.add("Sqrt", self.add("Cast", last, to=TensorProto.FLOAT))
            root = self.add("Sqrt", self.add("Div", self.constant(1), root))
            turned = self._turned_flat(key) if self._form == "flat" else self.add("Transpose", key, perm=[0, 1, 3, 2])
            scores = self.add("MatMul", self.add("Mul", query, root), self.add("Mul", turned, root))
        for bias in biases:
            if self._mask == "where" and bias == biases[-1]:
                scores = self.add("Where", bias, self.constant(LEAST), scores)
            else:
                scores = self.add("Add", scores, bias)
        share = self.add("Softmax", scores, axis=-1)
        if self._mask == "guarded":
            share = self.add("Where", self.add("IsNaN", share), self.constant(0), share)
        result = self.add("Transpose", self.add("MatMul", share, value), perm=[0, 2, 1, 3])
        return self.add("MatMul", self.add("Reshape", result, self.sizes(0, 0, HIDDEN)), self.weight(HIDDEN, HIDDEN))

    def _turned_flat(self, key: str) -> str:
        length = self.add("Slice", self.add("Shape", key), self.sizes(2), self.sizes(3))
        flat = self.add("Reshape", key, self.add("Concat", self.sizes(-1), length, self.sizes(WIDTH), axis=0))
        turned = self.add("Transpose", flat, perm=[0, 2, 1])
        return self.add("Reshape", turned, self.add("Concat", self.sizes(-1, HEADS, WIDTH), length, axis=0))


def write(path: Path, form: str = "sdpa", mask: str = "guarded", **others: Any) -> str:
    onnx.save(Encoder(form, mask, **others).proto(), path)
    return str(path)
