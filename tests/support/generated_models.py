"""Generated ONNX models, which nothing runs: initializers of every kind, also in sub-graphs and functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

NAMES = ["a", "b", "c", "é", "w.0"]
TYPES = [np.float32, np.float16, np.float64, np.int8, np.int64, np.uint16, np.bool_]


def value(shape: list[int], dtype: Any, seed: int) -> np.ndarray:
    """Any bytes; equal ones for an equal seed."""
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    data = np.random.default_rng(seed).integers(0, 2 if dtype == np.bool_ else 128, count, dtype=np.uint8)
    return np.frombuffer(data.tobytes(), dtype).reshape(shape)


@st.composite
def tensors(draw: st.DrawFn, *, external: bool) -> TensorProto:
    name, shape = draw(st.sampled_from(NAMES)), draw(st.sampled_from([[], [0], [3], [2, 5], [1024], [33, 64], [5000]]))
    array = value(shape, draw(st.sampled_from(TYPES)), draw(st.integers(0, 2)))
    kinds = ["raw", "raw", "typed", *(["external", "external without length"] if external else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "typed":
        return helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape, array.ravel())
    tensor = numpy_helper.from_array(array, name)
    if kind != "raw":
        entries: dict[str, Any] = {"location": draw(st.sampled_from(["w.bin", "folder/w é.bin"])), "checksum": "none"}
        entries["offset"] = draw(st.integers(0, 2**63))
        if kind == "external":
            entries["length"] = array.nbytes
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, entry in entries.items():
            tensor.external_data.add(key=key, value=str(entry))
    return tensor


@st.composite
def graphs(draw: st.DrawFn, depth: int = 0, *, external: bool = False) -> onnx.GraphProto:
    weights = draw(st.lists(tensors(external=external), max_size=3, unique_by=lambda tensor: tensor.name))
    inputs = [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in weights
        if draw(st.integers(0, 4)) == 0
    ]
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="é")]
    for _ in range(draw(st.integers(0, 2 if depth < 2 else 0))):
        branches = {name: draw(graphs(depth + 1, external=external)) for name in ("then_branch", "else_branch")}
        nodes.append(helper.make_node("If", ["c"], ["y"], **branches))
    return helper.make_graph(nodes, "graph", inputs, [], weights, doc_string="text" * depth)


@st.composite
def models(draw: st.DrawFn, *, external: bool = False) -> onnx.ModelProto:
    model = helper.make_model(draw(graphs(external=external)), ir_version=draw(st.sampled_from([3, 8, 10])))
    if draw(st.booleans()):
        branches = {name: draw(graphs(2, external=external)) for name in ("then_branch", "else_branch")}
        node = helper.make_node("If", ["c"], ["y"], **branches)
        opset = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("custom", "F", ["c"], ["y"], [node], opset, [], []))
    return model


def initializers(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """In the order in which they lie in the serialized model."""

    def of_nodes(nodes: Any) -> Iterator[TensorProto]:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    yield from of_graph(attribute.g)

    def of_graph(graph: onnx.GraphProto) -> Iterator[TensorProto]:
        yield from of_nodes(graph.node)
        yield from graph.initializer

    yield from of_graph(model.graph)
    for function in model.functions:
        yield from of_nodes(function.node)
