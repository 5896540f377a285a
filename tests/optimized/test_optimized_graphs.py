"""Entries of generated models: whatever the optimizer does with their weights, the bits are the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph

import ortmulti
from ortmulti.optimized import Cache
from ortmulti.optimized.comparison import check_loadable
from tests.support import onnx_models, optimized_models
from tests.support.cached_models import CPU

# Each makes [8, 32] of [8, 32]; see `append`.
OPERATORS = [
    *("MatMul", "Tied", "Gemm", "Folded", "Transpose"),
    *("Add", "Mul", "PRelu", "Relu", "Cast", "LayerNormalization"),
]


class Graph:
    """A chain of nodes and their weights, of names that begin with ``inside``."""

    def __init__(self, inside: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self._inside = inside
        self._values = 0

    def weight(self, *shape: int) -> str:
        name = f"{self._inside}w{len(self.weights)}"
        values = np.random.default_rng(len(self.weights)).standard_normal(shape, dtype=np.float32) / np.float32(4)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        self._values += 1
        output = f"{self._inside}v{self._values}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output


def append(graph: Graph, operator: str, value: str) -> str:
    square = [weight.name for weight in graph.weights if list(weight.dims) == [32, 32]]
    match operator:
        case "MatMul" | "Tied":
            return graph.node("MatMul", [value, square[0] if operator == "Tied" and square else graph.weight(32, 32)])
        case "Gemm":
            return graph.node("Gemm", [value, graph.weight(32, 32), graph.weight(32)], transB=1)
        case "Folded":
            folded = graph.node("Mul", [square[-1] if square else graph.weight(32, 32), graph.weight(1)])
            return graph.node("MatMul", [value, folded])
        case "Add" | "Mul" | "PRelu":
            # Between transposes the optimizer changes such constants and keeps their names.
            turned = graph.node("Transpose", [value], perm=[1, 0])
            done = graph.node(operator, [turned, graph.weight(32, 1) if operator == "PRelu" else graph.weight(32, 8)])
            return graph.node("Transpose", [done], perm=[1, 0])
        case "LayerNormalization":
            return graph.node("LayerNormalization", [value, graph.weight(32), graph.weight(32)], axis=-1)
        case "Cast":
            half = graph.node("Cast", [value], to=TensorProto.FLOAT16)
            return graph.node("Cast", [half], to=TensorProto.FLOAT)
        case "Transpose":
            turned = graph.node("Transpose", [graph.weight(32, 32)], perm=[1, 0])
            return graph.node("MatMul", [value, turned])
    return graph.node(operator, [value])


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    graph = Graph()
    value = "x"
    for operator in draw(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=6)):
        value = append(graph, operator, value)
    if draw(st.booleans()):
        branches = {}
        others = draw(st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=3))
        for name, operators in (("then_branch", ["MatMul", "Folded"]), ("else_branch", others)):
            inside = Graph("b")  # the same names in both
            last = value
            for operator in operators:
                last = append(inside, operator, last)
            inside.nodes[-1].output[0] = "out"
            output = helper.make_tensor_value_info("out", TensorProto.FLOAT, [8, 32])
            branches[name] = helper.make_graph(inside.nodes, name, [], [output], inside.weights)
        value = graph.node("If", ["c"], **branches)
    graph.nodes[-1].output[0] = "y"
    inputs: list[Any] = [("x", TensorProto.FLOAT, [8, 32]), ("c", TensorProto.BOOL, [])]
    return onnx_models.model(graph.nodes, inputs, [("y", TensorProto.FLOAT, [8, 32])], graph.weights)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(models(), st.sampled_from(["external", "inline", "bytes"]), st.sampled_from([1, 2, 99]), st.booleans())
def test_generated_models_compute_the_same_bits(proto: onnx.ModelProto, how: str, level: int, condition: bool) -> None:
    options = ortmulti.SessionOptions()
    options.graph_optimization_level = level
    feeds = {"x": np.random.default_rng(1).standard_normal((8, 32), dtype=np.float32), "c": np.array(condition)}
    with tempfile.TemporaryDirectory() as folder:
        model = optimized_models.write(Path(folder) / "model", proto, how)
        with optimized_models.make(Cache(Path(folder) / "cache"), model, options) as entry:
            entry.verify()
            try:
                found = optimized_models.run_entry(entry, feeds)
            except InvalidGraph:
                # ONNX Runtime gives new values of sibling branches one name, and refuses what it saved so.
                with pytest.raises(ortmulti.NotOptimizable, match="single static assignment"):
                    check_loadable(entry, CPU, options)
            else:
                check_loadable(entry, CPU, options)
                assert optimized_models.same_bits(found, optimized_models.run_ordinary(model, feeds, level))
