"""Pooling as part of the model: its output is the text's vector, and the vectors of tokens stay on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto, TensorProto, helper

from ortmulti.errors import NotOptimizable
from ortmulti.optimized.graph import Graph

if TYPE_CHECKING:
    from ortmulti.text.modules import Pooling

__all__ = ["add_pooling"]

_MASK = "attention_mask"
_OPSET = 13


def add_pooling(model: ModelProto, of_tokens: str, pooling: Pooling, to: str) -> None:
    """Have a model pool the vectors of its tokens, those which the mask leaves out excepted.

    Args:
        model: It is changed: ``to`` is its only output then, ``[rows, dims]`` of float32.
        of_tokens: The output ``[rows, tokens, dims]``.
        pooling: How a text's vector is made.
        to: The new output.

    Raises:
        NotOptimizable: The model does not say enough of its inputs and outputs.
    """
    graph = Graph(model)
    output = next(value for value in model.graph.output if value.name == of_tokens)
    mask = next((value for value in model.graph.input if value.name == _MASK), None)
    kind, dims = output.type.tensor_type.elem_type, output.type.tensor_type.shape.dim
    if graph.opset < _OPSET or mask is None or len(dims) != 3:
        raise NotOptimizable(
            f"it cannot pool by itself: that needs opset {_OPSET}, an input '{_MASK}', and an output [rows, tokens, "
            f"dims] in place of '{of_tokens}'"
        )
    if pooling == "max":
        real = graph.add("Cast", graph.add("Unsqueeze", _MASK, graph.weight([2], np.int64)), to=TensorProto.BOOL)
        least = graph.add("Cast", graph.weight([np.finfo(np.float16).min], np.float32), to=kind)
        pooled = graph.largest(graph.add("Where", real, of_tokens, least), [1])
    else:
        second = graph.weight([1], np.int64)
        weights = graph.add("Unsqueeze", graph.add("Cast", _weights(graph, pooling), to=kind), second)
        pooled = graph.add("Squeeze", graph.add("MatMul", weights, of_tokens), second)
    graph.add("Cast", pooled, to=TensorProto.FLOAT)
    graph.new[-1].output[0] = to
    rows = mask.type.tensor_type.shape.dim[0].dim_param or "rows"
    width = dims[2].dim_value or dims[2].dim_param or "dims"
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(to, TensorProto.FLOAT, [rows, width]))
    graph.keep([*model.graph.node, *graph.new])


def _weights(graph: Graph, pooling: Pooling) -> str:
    """Return what each token's vector counts: [rows, tokens], of float64, which half precision leaves alone."""
    second, one, axis = (graph.weight(value, np.int64) for value in ([1], [1], 1))
    counts = graph.add("Cast", _MASK, to=TensorProto.INT64)
    if pooling in ("cls", "last"):
        place = graph.add("CumSum", counts, axis, reverse=int(pooling == "last"))
        first = graph.add("Cast", graph.add("Equal", place, one), to=TensorProto.INT64)
        return graph.add("Cast", graph.add("Mul", counts, first), to=TensorProto.DOUBLE)
    if pooling == "weightedmean":
        counts = graph.add("Mul", counts, graph.add("CumSum", counts, axis))
    total = graph.add("Max", graph.add("ReduceSum", counts, second, keepdims=1), one)
    total = graph.add("Cast", total, to=TensorProto.DOUBLE)
    if pooling == "mean_sqrt_len":
        total = graph.add("Sqrt", total)
    return graph.add("Div", graph.add("Cast", counts, to=TensorProto.DOUBLE), total)
