"""A decoder of Phi-3-mini's shape: 3.82 billion parameters, 7.64 GB in fp16, random weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    graph = Graph("phi3-mini", "external", PRECISIONS[precision])
    return _Decoder(graph, dimensions or Dimensions()).build(layers)


@dataclass(frozen=True)
class _Shared:
    """Values that the graph computes once for all layers."""

    cos: str
    sin: str
    mask: str
    qkv_shape: str
    merged_shape: str
    half_sizes: str
    gate_up_sizes: str
    qkv_sizes: str
    scale: str
    two: str
    epsilon: str


class _Decoder:
    def __init__(self, graph: Graph, dimensions: Dimensions) -> None:
        self._graph = graph
        self._dtype = graph.dtype
        self._dims = dimensions

    def build(self, layers: int) -> Graph:
        graph, dims = self._graph, self._dims
        ids = graph.input("input_ids", ("batch", "sequence"), np.int64)
        shared = self._shared(ids)
        table = graph.weight("model.embed_tokens.weight", (dims.vocabulary, dims.hidden), std=1.0)
        hidden = graph.node("Gather", table, ids, name="model.embed_tokens", axis=0)
        for layer in range(layers):
            hidden = self._layer(hidden, f"model.layers.{layer}", shared)
        hidden = self._rms_norm(hidden, "model.norm", shared)
        head = self._matrix("lm_head.weight", dims.hidden, dims.vocabulary)
        graph.node("MatMul", hidden, head, name="lm_head", output="logits")
        graph.output("logits", ("batch", "sequence", dims.vocabulary))
        return graph

    def _shared(self, ids: str) -> _Shared:
        graph, dims = self._graph, self._dims
        cos, sin = _rotary_tables(dims)
        zero = graph.constant("constants.zero", np.array(0, np.int64))
        one = graph.constant("constants.one", np.array(1, np.int64))
        first = graph.constant("constants.first", np.array([0], np.int64))
        second = graph.constant("constants.second", np.array([1], np.int64))
        shape = graph.node("Shape", ids, name="rotary.ids_shape")
        length = graph.node("Gather", shape, one, name="rotary.length", axis=0)
        end = graph.node("Unsqueeze", length, first, name="rotary.end")
        tables = [
            graph.node(
                "Slice",
                graph.constant(f"rotary.{name}_table", table.astype(self._dtype)),
                first,
                end,
                first,
                name=f"rotary.{name}",
            )
            for name, table in (("cos", cos), ("sin", sin))
        ]
        positions = graph.node("Range", zero, length, one, name="mask.positions")
        rows = graph.node("Unsqueeze", positions, second, name="mask.rows")
        later = graph.node("Less", rows, positions, name="mask.later")
        lowest = graph.constant("mask.lowest", np.array(np.finfo(np.float16).min, self._dtype))
        nothing = graph.constant("mask.nothing", np.array(0, self._dtype))
        mask = graph.node("Where", later, lowest, nothing, name="mask")
        # As PyTorch's exporter does for every value. Without them no shape below would be known, and ONNX Runtime's
        # memory planner, which compares each with all others, would take longer than the weights.
        for table in tables:
            graph.declare(table, ("sequence", dims.head_size // 2))
        graph.declare(mask, ("sequence", "sequence"))
        return _Shared(
            cos=tables[0],
            sin=tables[1],
            mask=mask,
            qkv_shape=graph.constant("constants.qkv_shape", np.array([0, 0, 3 * dims.heads, dims.head_size], np.int64)),
            merged_shape=graph.constant("constants.merged_shape", np.array([0, 0, dims.hidden], np.int64)),
            half_sizes=graph.constant("constants.half_sizes", np.array([dims.head_size // 2] * 2, np.int64)),
            gate_up_sizes=graph.constant("constants.gate_up_sizes", np.array([dims.intermediate] * 2, np.int64)),
            qkv_sizes=graph.constant("constants.qkv_sizes", np.array([dims.heads] * 3, np.int64)),
            scale=graph.constant("constants.scale", np.array(1 / math.sqrt(dims.head_size), self._dtype)),
            two=graph.constant("constants.two", np.array(2, np.float32)),
            epsilon=graph.constant("constants.epsilon", np.array(EPSILON, np.float32)),
        )

    def _layer(self, hidden: str, name: str, shared: _Shared) -> str:
        graph = self._graph
        normed = self._rms_norm(hidden, f"{name}.input_layernorm", shared)
        attended = self._attention(normed, f"{name}.self_attn", shared)
        hidden = graph.node("Add", hidden, attended, name=f"{name}.attention_residual")
        normed = self._rms_norm(hidden, f"{name}.post_attention_layernorm", shared)
        return graph.node("Add", hidden, self._mlp(normed, f"{name}.mlp", shared), name=f"{name}.mlp_residual")

    def _attention(self, hidden: str, name: str, shared: _Shared) -> str:
        graph, dims = self._graph, self._dims
        qkv = graph.node(
            "MatMul", hidden, self._matrix(f"{name}.qkv_proj.weight", dims.hidden, 3 * dims.hidden), name=f"{name}.qkv"
        )
        qkv = graph.node("Reshape", qkv, shared.qkv_shape, name=f"{name}.heads")
        qkv = graph.node("Transpose", qkv, name=f"{name}.by_head", perm=[0, 2, 1, 3])
        query, key, value = graph.split(qkv, shared.qkv_sizes, count=3, name=f"{name}.split", axis=1)
        query = self._rotate(query, f"{name}.query", shared)
        query = graph.node("Mul", query, shared.scale, name=f"{name}.scaled_query")
        key = self._rotate(key, f"{name}.key", shared)
        key = graph.node("Transpose", key, name=f"{name}.key_transposed", perm=[0, 1, 3, 2])
        scores = graph.node("MatMul", query, key, name=f"{name}.scores")
        scores = graph.node("Add", scores, shared.mask, name=f"{name}.masked")
        weights = graph.node("Softmax", scores, name=f"{name}.softmax", axis=-1)
        mixed = graph.node("MatMul", weights, value, name=f"{name}.mixed")
        mixed = graph.node("Transpose", mixed, name=f"{name}.by_position", perm=[0, 2, 1, 3])
        mixed = graph.node("Reshape", mixed, shared.merged_shape, name=f"{name}.merged")
        return graph.node(
            "MatMul", mixed, self._matrix(f"{name}.o_proj.weight", dims.hidden, dims.hidden), name=f"{name}.o"
        )

    def _rotate(self, value: str, name: str, shared: _Shared) -> str:
        """Rotary position embedding over the two halves of each head."""
        graph = self._graph
        first, second = graph.split(value, shared.half_sizes, count=2, name=f"{name}.halves", axis=-1)
        products = {
            f"{half}_{table}": graph.node("Mul", part, factor, name=f"{name}.{half}_{table}")
            for half, part in (("first", first), ("second", second))
            for table, factor in (("cos", shared.cos), ("sin", shared.sin))
        }
        real = graph.node("Sub", products["first_cos"], products["second_sin"], name=f"{name}.real")
        imaginary = graph.node("Add", products["second_cos"], products["first_sin"], name=f"{name}.imaginary")
        return graph.node("Concat", real, imaginary, name=f"{name}.rotated", axis=-1)

    def _mlp(self, hidden: str, name: str, shared: _Shared) -> str:
        graph, dims = self._graph, self._dims
        both = graph.node(
            "MatMul",
            hidden,
            self._matrix(f"{name}.gate_up_proj.weight", dims.hidden, 2 * dims.intermediate),
            name=f"{name}.gate_up",
        )
        gate, up = graph.split(both, shared.gate_up_sizes, count=2, name=f"{name}.split", axis=-1)
        gate = graph.node("Mul", gate, graph.node("Sigmoid", gate, name=f"{name}.sigmoid"), name=f"{name}.silu")
        inner = graph.node("Mul", gate, up, name=f"{name}.gated")
        return graph.node(
            "MatMul",
            inner,
            self._matrix(f"{name}.down_proj.weight", dims.intermediate, dims.hidden),
            name=f"{name}.down",
        )

    def _rms_norm(self, hidden: str, name: str, shared: _Shared) -> str:
        """Root-mean-square normalization, its statistics in fp32 as exported models have it."""
        graph, dims = self._graph, self._dims
        narrow, wide = self._dtype, np.dtype(np.float32)
        value = hidden if narrow == wide else graph.cast(hidden, wide, name=f"{name}.wide")
        squares = graph.node("Pow", value, shared.two, name=f"{name}.squares")
        mean = graph.node("ReduceMean", squares, name=f"{name}.mean", axes=[-1], keepdims=1)
        root = graph.node("Sqrt", graph.node("Add", mean, shared.epsilon, name=f"{name}.stable"), name=f"{name}.root")
        value = graph.node("Div", value, root, name=f"{name}.normalized")
        if narrow != wide:
            value = graph.cast(value, narrow, name=f"{name}.narrow")
        weight = graph.weight(f"{name}.weight", (dims.hidden,), mean=1.0, std=0.1)
        return graph.node("Mul", value, weight, name=name)

    def _matrix(self, name: str, rows: int, columns: int) -> str:
        """Return a matrix that keeps the variance of its input, so that all layers add about the same amount."""
        return self._graph.weight(name, (rows, columns), std=1 / math.sqrt(rows))


def _rotary_tables(dims: Dimensions) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cosines and sines of every position's angles: float64 [positions, head_size / 2] each."""
    frequencies = 10000.0 ** (-np.arange(0, dims.head_size, 2) / dims.head_size)
    angles = np.outer(np.arange(dims.positions), frequencies)
    return np.cos(angles), np.sin(angles)
