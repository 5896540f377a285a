"""Models of values of any type, and their runs beside onnxruntime's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

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
