"""Writes the models of the core's tests: `python -m tests.cpp.make_models FOLDER`.

They are small and their results easy to state; the broken ones are broken in one way each. Operator sets and IR version
are those of ONNX Runtime 1.21 or older.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
WIDE = 256
"""Rows and columns of the larger weights: 256 KiB in float32, more than a pipe holds."""


def tensor(name: str, shape: Sequence[int | str], element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def constant(name: str, value: object, dtype: str = "float32") -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype=dtype), name)


def model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    machine_learning: bool = False,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", OPSET)]
    if machine_learning:
        opsets.append(helper.make_opsetid("ai.onnx.ml", 3))
    made = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="ortmulti tests")
    onnx.checker.check_model(made)
    return made


def add() -> onnx.ModelProto:
    """sum = x + [1, 2, 3] and difference = x - [1, 2, 3], for x of shape [batch, 3]."""
    nodes = [helper.make_node("Add", ["x", "c"], ["sum"]), helper.make_node("Sub", ["x", "c"], ["difference"])]
    outputs = [tensor("sum", ["batch", 3]), tensor("difference", ["batch", 3])]
    return model("add", nodes, [tensor("x", ["batch", 3])], outputs, [constant("c", [1, 2, 3])])


def foldable() -> onnx.ModelProto:
    """y = x + 2 * 3, where the product is a node that optimization computes ahead."""
    nodes = [helper.make_node("Mul", ["two", "three"], ["six"]), helper.make_node("Add", ["x", "six"], ["y"])]
    initializers = [constant("two", [2]), constant("three", [3])]
    return model("foldable", nodes, [tensor("x", [1])], [tensor("y", [1])], initializers)


def wide() -> onnx.ModelProto:
    """y = x @ w with w twice the identity matrix."""
    weights = constant("w", 2 * np.eye(WIDE))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model("wide", nodes, [tensor("x", ["batch", WIDE])], [tensor("y", ["batch", WIDE])], [weights])


def move_out(weights: onnx.TensorProto, location: str) -> onnx.TensorProto:
    """The initializer with its data at the start of the file `location`, which is not written here."""
    length = len(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        weights.external_data.add(key=key, value=value)
    return weights


def external(location: str) -> onnx.ModelProto:
    """`wide` with its weights in the file `location`."""
    made = wide()
    move_out(made.graph.initializer[0], location)
    return made


def supplied(location: str) -> onnx.ModelProto:
    """y = x @ w + b, with names that are hard to find in a line of a log, and weights that have to be supplied."""
    matrix, bias = "w) because (w).", "b"
    nodes = [helper.make_node("MatMul", ["x", matrix], ["xw"]), helper.make_node("Add", ["xw", bias], ["y"])]
    initializers = [constant(matrix, np.zeros((WIDE, WIDE))), constant(bias, np.zeros(WIDE))]
    made = model("supplied", nodes, [tensor("x", ["batch", WIDE])], [tensor("y", ["batch", WIDE])], initializers)
    for weights in made.graph.initializer:
        move_out(weights, location)
    return made


def branches(location: str) -> onnx.ModelProto:
    """y = x @ outer + inner, with another `inner` where `which` is not true; the weights have to be supplied."""
    parts = {}
    for branch in ("then", "else"):
        weights = constant(f"inner of {branch}", np.zeros(WIDE))
        nodes = [
            helper.make_node("MatMul", ["x", "outer"], [f"product of {branch}"]),
            helper.make_node("Add", [f"product of {branch}", weights.name], [f"sum of {branch}"]),
        ]
        parts[f"{branch}_branch"] = helper.make_graph(
            nodes, branch, [], [tensor(f"sum of {branch}", ["batch", WIDE])], [weights]
        )
    nodes = [helper.make_node("If", ["which"], ["y"], **parts)]
    inputs = [tensor("which", [], TensorProto.BOOL), tensor("x", ["batch", WIDE])]
    outer = constant("outer", np.zeros((WIDE, WIDE)))
    made = model("branches", nodes, inputs, [tensor("y", ["batch", WIDE])], [outer])
    move_out(made.graph.initializer[0], location)
    for attribute in made.graph.node[0].attribute:
        move_out(attribute.g.initializer[0], location)
    return made


def count() -> onnx.ModelProto:
    """total = n, counted one by one: runs as long as asked."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["before", "one"], ["after"]),
            helper.make_node("Identity", ["going"], ["go_on"]),
        ],
        "body",
        [
            tensor("i", [], TensorProto.INT64),
            tensor("going", [], TensorProto.BOOL),
            tensor("before", [], TensorProto.INT64),
        ],
        [tensor("go_on", [], TensorProto.BOOL), tensor("after", [], TensorProto.INT64)],
        [constant("one", 1, "int64")],
    )
    nodes = [helper.make_node("Loop", ["n", "always", "zero"], ["total"], body=body)]
    initializers = [constant("always", True, "bool"), constant("zero", 0, "int64")]
    inputs = [tensor("n", [], TensorProto.INT64)]
    return model("count", nodes, inputs, [tensor("total", [], TensorProto.INT64)], initializers)


def types() -> onnx.ModelProto:
    """Outputs that are not tensors, and tensors of other elements."""
    float_type = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 2])
    sequence = helper.make_sequence_type_proto(float_type)
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    optional = helper.make_optional_type_proto(float_type)
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["sequence"]),
        helper.make_node("ZipMap", ["x"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[10, 20]),
        helper.make_node("Optional", ["x"], ["optional"]),
        helper.make_node("Identity", ["words"], ["strings"]),
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
    ]
    outputs = [
        helper.make_value_info("sequence", sequence),
        helper.make_value_info("maps", maps),
        helper.make_value_info("optional", optional),
        tensor("strings", ["words"], TensorProto.STRING),
        tensor("half", [1, 2], TensorProto.FLOAT16),
    ]
    inputs = [tensor("x", [1, 2]), tensor("words", ["words"], TensorProto.STRING)]
    return model("types", nodes, inputs, outputs, machine_learning=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for make in (add, foldable, wide, count, types):
        onnx.save(make(), folder / f"{make.__name__}.onnx")

    data = numpy_helper.to_array(wide().graph.initializer[0]).tobytes()
    onnx.save(external("external.data"), folder / "external.onnx")
    (folder / "external.data").write_bytes(data)
    onnx.save(external("short_data.data"), folder / "short_data.onnx")
    (folder / "short_data.data").write_bytes(data[: len(data) // 2])
    onnx.save(external("not_there.data"), folder / "missing_data.onnx")
    for make_with in (supplied, branches):
        onnx.save(make_with("nothing.data"), folder / f"{make_with.__name__}.onnx")
    (folder / "nothing.data").write_bytes(b"")

    whole = (folder / "wide.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (folder / "text.onnx").write_text("This is no model.\n" * 100)


if __name__ == "__main__":
    main()
