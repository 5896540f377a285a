"""Models of values of any type, and their runs beside onnxruntime's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ortmulti

CPU = "CPUExecutionProvider"
Type = onnx.TypeProto


def tensor(element: int, shape: Sequence[Any] | None = None) -> Type:
    return helper.make_tensor_type_proto(element, shape)


def sequence(of: Type) -> Type:
    return helper.make_sequence_type_proto(of)


def optional(of: Type) -> Type:
    return helper.make_optional_type_proto(of)


def mapping(key: int, value: int) -> Type:
    return helper.make_map_type_proto(key, tensor(value))


def model(nodes: Sequence[onnx.NodeProto], inputs: dict[str, Type], outputs: dict[str, Type], opset: int = 17) -> bytes:
    infos = [[helper.make_value_info(*item) for item in values.items()] for values in (inputs, outputs)]
    graph = helper.make_graph(list(nodes), "graph", *infos)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8 if opset < 21 else 10).SerializeToString()


def one(op: str, x: Type, y: Type, *, opset: int = 17, domain: str = "", **attributes: Any) -> bytes:
    """ "y" = op("x")."""
    return model([helper.make_node(op, ["x"], ["y"], domain=domain, **attributes)], {"x": x}, {"y": y}, opset)


def same(type_: Type, opset: int = 17) -> bytes:
    return one("Identity", type_, type_, opset=opset)


def casting(element: int, *, back: bool) -> bytes:
    """A cast from float32, or back to it; of int4, which not every release casts, a quantization by 1."""
    types = tensor(element), tensor(TensorProto.FLOAT)
    x, y = types if back else types[::-1]
    if element not in (TensorProto.INT4, TensorProto.UINT4):
        return one("Cast", x, y, opset=21, to=TensorProto.FLOAT if back else element)
    nodes = [
        helper.make_node("Constant", [], ["scale"], value_float=1.0),
        helper.make_node("DequantizeLinear", ["x", "scale"], ["y"])
        if back
        else helper.make_node("QuantizeLinear", ["x", "scale"], ["y"], output_dtype=element),
    ]
    return model(nodes, {"x": x}, {"y": y}, opset=21)


@cache
def pair(content: bytes) -> tuple[onnxruntime.InferenceSession, ortmulti.InferenceSession]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return (
        onnxruntime.InferenceSession(content, options, providers=[CPU]),
        ortmulti.InferenceSession(content, providers=[CPU]),
    )


def assert_same(actual: Any, expected: Any) -> None:
    """The same Python types, dtypes, shapes and values, at every depth."""
    assert type(actual) is type(expected)
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for pairs in zip(actual, expected, strict=True):
            assert_same(*pairs)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        assert [type(key) for key in actual] == [type(key) for key in expected]
        for key, value in expected.items():
            assert_same(actual[key], value)
    elif isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        if expected.dtype == object:
            assert actual.tolist() == expected.tolist()
        else:
            assert actual.tobytes() == expected.tobytes()
    else:
        assert actual == expected


def check(content: bytes, value: Any) -> Any:
    """Runs both with "x" and returns the one result that both gave."""
    theirs, ours = pair(content)
    assert [(i.name, i.type) for i in ours.get_inputs()] == [(i.name, i.type) for i in theirs.get_inputs()]
    assert [(o.name, o.type) for o in ours.get_outputs()] == [(o.name, o.type) for o in theirs.get_outputs()]
    [expected] = theirs.run(None, {"x": value})
    [actual] = ours.run(None, {"x": value})
    assert_same(actual, expected)
    return actual
