"""A decoder of Phi-3-mini's shape: 3.82 billion parameters, 7.64 GB in fp16, random weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ortmulti.bench.models._graph import PRECISIONS, Graph

LAYERS = 32
EPSILON = 1e-5


@dataclass(frozen=True)
class Dimensions:
    """Sizes of the decoder; the defaults are Phi-3-mini's."""

    hidden: int = 3072
    intermediate: int = 8192
    heads: int = 32
    vocabulary: int = 32064
    positions: int = 4096

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def build(layers: int = LAYERS, precision: str = "fp16", dimensions: Dimensions | None = None) -> Graph:
    """Describe the model.

    Input "input_ids": int64 [batch, sequence], below 32064; at most 4096 positions. Output "logits":
    [batch, sequence, 32064], for every position, fp16 or fp32 as the weights are. Attention is causal. There is no
    KV cache: every run computes all positions anew. The operators are ONNX's own (opset 17), each of which ONNX
    Runtime has for the CPU and for CUDA.

    On the CPU ONNX Runtime computes fp16 as fp32. Newer releases (1.31) convert the weights when the session is
    created; the session then has twice the model's bytes. Older ones (1.21) convert them in every run.

    Args:
        layers: Decoder layers; each has 226.5 MB of fp16 weights, the embedding and the head 394 MB together.
        precision: "fp16", or "fp32": twice the size, and the one that CPUs compute without conversions.
        dimensions: Sizes other than Phi-3-mini's.
    """
    return _Decoder(layers, PRECISIONS[precision], dimensions or Dimensions())


class _Decoder(Graph):
    def __init__(self, layers: int, dtype: type[np.generic], dims: Dimensions) -> None:
        super().__init__("phi3-mini", external=True, dtype=dtype)
        self._dims = dims
        ids = self.input("input_ids", ("batch", "sequence"), np.int64)
        self._tables_and_mask(ids)
        # Constants of all layers, by the names that the nodes below have for them.
        for name, values, kind in (
            ("qkv_shape", [0, 0, 3 * dims.heads, dims.head_size], np.int64),
            ("merged_shape", [0, 0, dims.hidden], np.int64),
            ("half_sizes", [dims.head_size // 2] * 2, np.int64),
            ("gate_up_sizes", [dims.intermediate] * 2, np.int64),
            ("qkv_sizes", [dims.heads] * 3, np.int64),
            ("scale", 1 / math.sqrt(dims.head_size), self.dtype),
            ("two", 2, np.float32),
            ("epsilon", EPSILON, np.float32),
        ):
            self.constant(f"constants.{name}", np.array(values, kind))
        table = self.weight("model.embed_tokens.weight", (dims.vocabulary, dims.hidden), std=1.0)
        hidden = self.node("Gather", table, ids, name="model.embed_tokens", axis=0)
        for layer in range(layers):
            hidden = self._layer(hidden, f"model.layers.{layer}")
        hidden = self._rms_norm(hidden, "model.norm")
        head = self._matrix("lm_head.weight", dims.hidden, dims.vocabulary)
        self.node("MatMul", hidden, head, name="lm_head", output="logits")
        self.output("logits", ("batch", "sequence", dims.vocabulary))

    def _tables_and_mask(self, ids: str) -> None:
        """Add what all layers use: "cos", "sin" and "mask", for the sequence's length."""
        dims = self._dims
        zero = self.constant("constants.zero", np.array(0, np.int64))
        one = self.constant("constants.one", np.array(1, np.int64))
        first = self.constant("constants.first", np.array([0], np.int64))
        second = self.constant("constants.second", np.array([1], np.int64))
        shape = self.node("Shape", ids, name="rotary.ids_shape")
        length = self.node("Gather", shape, one, name="rotary.length", axis=0)
        end = self.node("Unsqueeze", length, first, name="rotary.end")
        # Of every position's angles: [positions, head_size / 2].
        frequencies = 10000.0 ** (-np.arange(0, dims.head_size, 2) / dims.head_size)
        angles = np.outer(np.arange(dims.positions), frequencies)
        tables = []
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            table = self.constant(f"rotary.{name}_table", function(angles).astype(self.dtype))
            tables.append(self.node("Slice", table, first, end, first, name=f"rotary.{name}"))
        self._cos, self._sin = tables
        positions = self.node("Range", zero, length, one, name="mask.positions")
        rows = self.node("Unsqueeze", positions, second, name="mask.rows")
        later = self.node("Less", rows, positions, name="mask.later")
        lowest = self.constant("mask.lowest", np.array(np.finfo(np.float16).min, self.dtype))
        nothing = self.constant("mask.nothing", np.array(0, self.dtype))
        self._mask = self.node("Where", later, lowest, nothing, name="mask")
        # As PyTorch's exporter does for every value. Without them no shape below would be known, and ONNX Runtime's
        # memory planner, which compares each with all others, would take longer than the weights.
        for table in tables:
            self.declare(table, ("sequence", dims.head_size // 2))
        self.declare(self._mask, ("sequence", "sequence"))

    def _layer(self, hidden: str, name: str) -> str:
        normed = self._rms_norm(hidden, f"{name}.input_layernorm")
        attended = self._attention(normed, f"{name}.self_attn")
        hidden = self.node("Add", hidden, attended, name=f"{name}.attention_residual")
        normed = self._rms_norm(hidden, f"{name}.post_attention_layernorm")
        return self.node("Add", hidden, self._mlp(normed, f"{name}.mlp"), name=f"{name}.mlp_residual")

    def _attention(self, hidden: str, name: str) -> str:
        dims = self._dims
        qkv = self._linear(hidden, f"{name}.qkv", dims.hidden, 3 * dims.hidden)
        qkv = self.node("Reshape", qkv, "constants.qkv_shape", name=f"{name}.heads")
        qkv = self.node("Transpose", qkv, name=f"{name}.by_head", perm=[0, 2, 1, 3])
        query, key, value = self.split(qkv, "constants.qkv_sizes", count=3, name=f"{name}.split", axis=1)
        query = self._rotate(query, f"{name}.query")
        query = self.node("Mul", query, "constants.scale", name=f"{name}.scaled_query")
        key = self._rotate(key, f"{name}.key")
        key = self.node("Transpose", key, name=f"{name}.key_transposed", perm=[0, 1, 3, 2])
        scores = self.node("MatMul", query, key, name=f"{name}.scores")
        scores = self.node("Add", scores, self._mask, name=f"{name}.masked")
        weights = self.node("Softmax", scores, name=f"{name}.softmax", axis=-1)
        mixed = self.node("MatMul", weights, value, name=f"{name}.mixed")
        mixed = self.node("Transpose", mixed, name=f"{name}.by_position", perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", mixed, "constants.merged_shape", name=f"{name}.merged")
        return self._linear(mixed, f"{name}.o", dims.hidden, dims.hidden)

    def _rotate(self, value: str, name: str) -> str:
        """Rotary position embedding over the two halves of each head."""
        first, second = self.split(value, "constants.half_sizes", count=2, name=f"{name}.halves", axis=-1)
        products = {
            f"{half}_{table}": self.node("Mul", part, factor, name=f"{name}.{half}_{table}")
            for half, part in (("first", first), ("second", second))
            for table, factor in (("cos", self._cos), ("sin", self._sin))
        }
        real = self.node("Sub", products["first_cos"], products["second_sin"], name=f"{name}.real")
        imaginary = self.node("Add", products["second_cos"], products["first_sin"], name=f"{name}.imaginary")
        return self.node("Concat", real, imaginary, name=f"{name}.rotated", axis=-1)

    def _mlp(self, hidden: str, name: str) -> str:
        dims = self._dims
        both = self._linear(hidden, f"{name}.gate_up", dims.hidden, 2 * dims.intermediate)
        gate, up = self.split(both, "constants.gate_up_sizes", count=2, name=f"{name}.split", axis=-1)
        gate = self.node("Mul", gate, self.node("Sigmoid", gate, name=f"{name}.sigmoid"), name=f"{name}.silu")
        inner = self.node("Mul", gate, up, name=f"{name}.gated")
        return self._linear(inner, f"{name}.down", dims.intermediate, dims.hidden)

    def _rms_norm(self, hidden: str, name: str) -> str:
        """Root-mean-square normalization, its statistics in fp32 as exported models have it."""
        narrow, wide = self.element_type(self.dtype), self.element_type(np.dtype(np.float32))
        value = hidden if narrow == wide else self.node("Cast", hidden, name=f"{name}.wide", to=wide)
        squares = self.node("Pow", value, "constants.two", name=f"{name}.squares")
        mean = self.node("ReduceMean", squares, name=f"{name}.mean", axes=[-1], keepdims=1)
        stable = self.node("Add", mean, "constants.epsilon", name=f"{name}.stable")
        value = self.node("Div", value, self.node("Sqrt", stable, name=f"{name}.root"), name=f"{name}.normalized")
        if narrow != wide:
            value = self.node("Cast", value, name=f"{name}.narrow", to=narrow)
        weight = self.weight(f"{name}.weight", (self._dims.hidden,), mean=1.0, std=0.1)
        return self.node("Mul", value, weight, name=name)

    def _linear(self, value: str, name: str, rows: int, columns: int) -> str:
        return self.node("MatMul", value, self._matrix(f"{name}_proj.weight", rows, columns), name=name)

    def _matrix(self, name: str, rows: int, columns: int) -> str:
        """Return a matrix that keeps the variance of its input, so that all layers add about the same amount."""
        return self.weight(name, (rows, columns), std=1 / math.sqrt(rows))
