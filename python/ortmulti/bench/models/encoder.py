"""A text encoder of BERT's shape: by default that of all-MiniLM-L6-v2."""

from __future__ import annotations

import math

import numpy as np

from ortmulti.bench.models._graph import PRECISIONS, Graph
from ortmulti.errors import InvalidArgument

LAYERS = 6
HIDDEN = 384
VOCABULARY = 30_522
POSITIONS = 512
STD = 0.02
"""Of the weights, as in BERT's own initialization."""


def build(layers: int = LAYERS, hidden: int = HIDDEN, precision: str = "fp32") -> Graph:
    """Describe the model.

    Inputs "input_ids" and "attention_mask": int64 [batch, sequence], a sequence of 512 at most. Outputs
    "token_embeddings" [batch, sequence, hidden], and "sentence_embedding" [batch, hidden], the mean over the mask.
    Layers are BERT's: attention of 12 heads, or 16 from 1,024 on; the norm behind each sum; Gelu by Erf.

    Args:
        layers: 12, with ``hidden`` 768, for BERT-base; 24, with 1,024, for BERT-large.
        hidden: Width: a multiple of the number of heads.
        precision: Of weights and activations, one of `PRECISIONS`.

    Raises:
        InvalidArgument: ``hidden`` is no multiple of the heads.
    """
    heads = 16 if hidden >= 1024 else 12
    if hidden % heads:
        less = hidden - hidden % heads
        near = f"{less} or {less + heads}" if less else str(heads)
        raise InvalidArgument(f"hidden must be a multiple of the {heads} heads, not {hidden}; take {near}")
    graph = Graph("encoder", external=layers * hidden * hidden > 1 << 24, dtype=PRECISIONS[precision])
    tokens = ("batch", "sequence")
    ids, mask = (graph.input(name, tokens, np.int64) for name in ("input_ids", "attention_mask"))
    cast = graph.node("Cast", mask, name="mask", to=graph.element_type(graph.dtype))
    number = {
        name: graph.constant(name, np.array(value, graph.dtype))
        for name, value in (("one", 1), ("half", 0.5), ("root2", math.sqrt(2)), ("lowest", -1e4), ("least", 1e-6))
    }
    axes = {name: graph.constant(name, np.array(value)) for name, value in (("axis1", [1]), ("axis2", [2]))}
    heads_shape = graph.constant("heads", np.array([0, 0, heads, hidden // heads]))
    hidden_shape = graph.constant("together", np.array([0, 0, hidden]))
    root = graph.constant("root", np.array(math.sqrt(hidden / heads), graph.dtype))
    masked = graph.node("Sub", number["one"], cast, name="masked")
    bias = graph.node("Mul", masked, number["lowest"], name="bias")
    bias = graph.node("Unsqueeze", bias, graph.constant("axes12", np.array([1, 2])), name="bias4")

    def linear(value: str, name: str, rows: int, columns: int) -> str:
        weight = graph.weight(f"{name}.weight", (rows, columns), std=STD)
        product = graph.node("MatMul", value, weight, name=f"{name}.matmul")
        return graph.node("Add", product, graph.weight(f"{name}.bias", (columns,), std=STD), name=f"{name}.add")

    def norm(value: str, name: str, output: str | None = None) -> str:
        scale = graph.weight(f"{name}.scale", (hidden,), mean=1, std=STD)
        shift = graph.weight(f"{name}.shift", (hidden,), std=STD)
        return graph.node("LayerNormalization", value, scale, shift, name=name, output=output, axis=-1, epsilon=1e-12)

    def split(value: str, name: str, perm: list[int]) -> str:
        parts = graph.node("Reshape", linear(value, name, hidden, hidden), heads_shape, name=f"{name}.heads")
        return graph.node("Transpose", parts, name=f"{name}.turned", perm=perm)

    words = graph.node("Gather", graph.weight("words", (VOCABULARY, hidden), std=STD), ids, name="embed")
    zero = graph.constant("zero", np.array(0))
    length = graph.node(
        "Gather", graph.node("Shape", ids, name="shape"), graph.constant("second", np.array(1)), name="n"
    )
    counted = graph.node("Range", zero, length, graph.constant("step", np.array(1)), name="places")
    places = graph.node("Gather", graph.weight("positions", (POSITIONS, hidden), std=STD), counted, name="place")
    value = norm(graph.node("Add", words, places, name="embedded"), "first")
    for layer in range(layers):
        name = f"layer{layer}"
        query = split(value, f"{name}.query", [0, 2, 1, 3])
        scores = graph.node("MatMul", query, split(value, f"{name}.key", [0, 2, 3, 1]), name=f"{name}.scores")
        scores = graph.node("Add", graph.node("Div", scores, root, name=f"{name}.scaled"), bias, name=f"{name}.masked")
        shares = graph.node("Softmax", scores, name=f"{name}.softmax", axis=-1)
        context = graph.node("MatMul", shares, split(value, f"{name}.value", [0, 2, 1, 3]), name=f"{name}.context")
        context = graph.node("Transpose", context, name=f"{name}.back", perm=[0, 2, 1, 3])
        context = graph.node("Reshape", context, hidden_shape, name=f"{name}.together")
        attended = linear(context, f"{name}.out", hidden, hidden)
        value = norm(graph.node("Add", attended, value, name=f"{name}.sum1"), f"{name}.norm1")
        wide = linear(value, f"{name}.wide", hidden, 4 * hidden)
        erf = graph.node("Erf", graph.node("Div", wide, number["root2"], name=f"{name}.div"), name=f"{name}.erf")
        gate = graph.node("Add", erf, number["one"], name=f"{name}.gate")
        wide = graph.node(
            "Mul", graph.node("Mul", wide, gate, name=f"{name}.gated"), number["half"], name=f"{name}.gelu"
        )
        narrow = linear(wide, f"{name}.narrow", 4 * hidden, hidden)
        last = layer == layers - 1
        total = graph.node("Add", narrow, value, name=f"{name}.sum2")
        value = norm(total, f"{name}.norm2", "token_embeddings" if last else None)
    column = graph.node("Unsqueeze", cast, axes["axis2"], name="column")
    real = graph.node("Mul", value, column, name="real")
    total = graph.node("ReduceSum", real, axes["axis1"], name="total", keepdims=0)
    count = graph.node("ReduceSum", cast, axes["axis1"], name="count", keepdims=1)
    count = graph.node("Max", count, number["least"], name="counted")
    graph.node("Div", total, count, name="mean", output="sentence_embedding")
    graph.output("token_embeddings", (*tokens, hidden))
    graph.output("sentence_embedding", ("batch", hidden))
    return graph
