"""Small ONNX models for tests, as bytes, and sessions of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

import ortmulti
from tests.support.session_options import options as options

# So many loops of `endless` take about a minute: longer than any test that passes. A test that fails waits for them in
# `close`, and is reported then.
LONG = 50_000_000

Shape = Sequence[int | str | None] | None
Value = tuple[str, int, Shape]

# Every element type that both ONNX Runtime's and NumPy's arrays have, strings left out.
NUMERIC: dict[int, np.dtype] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.UINT64: np.dtype(np.uint64),
}


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of these nodes; a value is (name, element type, shape), a shape None where nothing is declared."""

    def info(value: Value) -> onnx.ValueInfoProto:
        name, element_type, shape = value
        return helper.make_tensor_value_info(name, element_type, shape)

    graph = helper.make_graph(
        list(nodes), "graph", [info(v) for v in inputs], [info(v) for v in outputs], list(initializers)
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, producer_name="ortmulti tests"
    )


def parsed(text: str, *initializers: onnx.TensorProto) -> onnx.ModelProto:
    """A model in ONNX's text form: "(float[n] x) => (float[n] y) { y = Neg(x) }".

    Functions of the model may follow. Each domain of an operator, but ONNX's own, has version 1.
    """
    opsets = "".join(f', "{domain}": 1' for domain in {*re.findall(r"= ([\w.]+)\.\w+ *[<(]", text)})
    head = f'<ir_version: 8, opset_import: ["": 17{opsets}], producer_name: "ortmulti tests">'
    proto = parser.parse_model(f"{head} graph {text}")
    proto.graph.initializer.extend(initializers)
    return proto


def with_weights(text: str, opset: int = 17, **weights: Any) -> bytes:
    """The same with arrays as initializers, by name."""
    made = parsed(text, *(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()))
    made.opset_import[0].version = opset
    return made.SerializeToString()


def at_least(size: int) -> bytes:
    """y = a convolution of x [n, 1, samples], which has as many samples as this, or more."""
    kernel = numpy_helper.from_array(np.ones((1, 1, size), np.float32), "kernel")
    return parsed("(float[n, 1, samples] x) => (float[] y) { y = Conv(x, kernel) }", kernel).SerializeToString()


def one_node(op: str, element_type: int = TensorProto.FLOAT, shape: Shape = None) -> bytes:
    """ "y" = op("x"), both of this type and shape."""
    value = (element_type, shape)
    return model([helper.make_node(op, ["x"], ["y"])], [("x", *value)], [("y", *value)]).SerializeToString()


def identity(element_type: int = TensorProto.FLOAT, shape: Shape = None) -> bytes:
    return one_node("Identity", element_type, shape)


def add_mul(size: int = 8) -> bytes:
    """Three outputs of two inputs: "sum" = a + b, "product" = a * b, "first" = a, all float32 [n, size]."""
    values = {name: f"float[n, {size}] {name}" for name in ("a", "b", "sum", "product", "first")}
    return parsed(
        "({a}, {b}) => ({sum}, {product}, {first})".format_map(values)
        + "{ sum = Add(a, b) product = Mul(a, b) first = Identity(a) }"
    ).SerializeToString()


def matmul_proto(size: int = 64, layers: int = 2, seed: int = 0) -> onnx.ModelProto:
    """ "y" = "x" times `layers` random matrices, float32 [n, size]."""
    random = np.random.default_rng(seed)
    weights, nodes, value = [], [], "x"
    for layer in range(layers):
        weight = random.standard_normal((size, size), dtype=np.float32) / np.float32(size**0.5)
        weights.append(numpy_helper.from_array(weight, f"weight{layer}"))
        output = "y" if layer == layers - 1 else f"value{layer}"
        nodes.append(helper.make_node("MatMul", [value, f"weight{layer}"], [output], f"matmul{layer}"))
        value = output
    return model(nodes, [("x", TensorProto.FLOAT, ["n", size])], [("y", TensorProto.FLOAT, ["n", size])], weights)


def matmul(size: int = 64, layers: int = 2, seed: int = 0) -> bytes:
    return matmul_proto(size, layers, seed).SerializeToString()


def write_matmuls(folder: Path, count: int) -> list[Path]:
    """Writes models that differ in their weights: m0.onnx, m1.onnx, ..."""
    paths = [folder / f"m{seed}.onnx" for seed in range(count)]
    for seed, path in enumerate(paths):
        path.write_bytes(matmul(seed=seed))
    return paths


def convolution(channels: int = 8, size: int = 16, seed: int = 0) -> bytes:
    """Convolution, Relu, convolution: "y" float32 [n, channels, size, size] of "x" [n, 3, size, size]."""
    random = np.random.default_rng(seed)

    def weight(name: str, inputs: int) -> onnx.TensorProto:
        values = random.standard_normal((channels, inputs, 3, 3), dtype=np.float32) / np.float32(10)
        return numpy_helper.from_array(values, name)

    return parsed(
        f"(float[n, 3, {size}, {size}] x) => (float[n, {channels}, {size}, {size}] y)"
        """{
            value0 = Conv <pads = [1, 1, 1, 1]> (x, weight0)
            value1 = Relu(value0)
            y = Conv <pads = [1, 1, 1, 1]> (value1, weight1)
        }""",
        weight("weight0", 3),
        weight("weight1", channels),
    ).SerializeToString()


def convolutions(size: int = 4, seed: int = 0) -> bytes:
    """ "y" of "x", n x 4 * size * size each, by convolutions of several kinds over images of 4 channels.

    For some of them cuDNN compiles kernels at run time, which belong to the plan of one number of images.
    """
    random = np.random.default_rng(seed)
    weights = {"images": np.array([-1, 4, size, size], np.int64), "rows": np.array([-1, 4 * size * size], np.int64)}
    lines, name, channels = ["i = Reshape (x, images)"], "i", 4
    for number, (kernel, made, group) in enumerate(
        [(3, 32, 1), (3, 32, 32), (1, 32, 1), (5, 32, 32), (1, 32, 1), (3, 32, 32), (1, 4, 1)]
    ):
        shape = (made, channels // group, kernel, kernel)
        weights[f"w{number}"] = (2 * random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        pads = ", ".join([str(kernel // 2)] * 4)
        lines.append(f"c{number} = Conv <group = {group}, pads = [{pads}]> ({name}, w{number})")
        lines.append(f"h{number} = HardSwish (c{number})")
        name, channels = f"h{number}", made
    lines.append(f"y = Reshape ({name}, rows)")
    columns = 4 * size * size
    return with_weights(f"(float[n, {columns}] x) => (float[n, {columns}] y) {{ {chr(10).join(lines)} }}", **weights)


def constant_outputs() -> bytes:
    """Outputs that no kernel of a run writes: "initializer" and "folded" (float32 [1000]), and "x" itself."""
    return parsed(
        "(float[n] x) => (float[1000] initializer, float[1000] folded, float[n] x, float[n] y)"
        "{ folded = Neg(initializer) y = Neg(x) }",
        numpy_helper.from_array(np.arange(1000, dtype=np.float32), "initializer"),
    ).SerializeToString()


def control_flow() -> bytes:
    """ "y" = "x" if "c", else -"x"."""

    def branch(op: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info("taken", TensorProto.FLOAT, [4])
        return helper.make_graph([helper.make_node(op, ["x"], ["taken"])], op, [], [output])

    return model(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch("Identity"), else_branch=branch("Neg"))],
        [("c", TensorProto.BOOL, []), ("x", TensorProto.FLOAT, [4])],
        [("y", TensorProto.FLOAT, [4])],
    ).SerializeToString()


def nonzero() -> bytes:
    return model(
        [helper.make_node("NonZero", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["n"])],
        [("y", TensorProto.INT64, [1, "found"])],
    ).SerializeToString()


def write_external(folder: Path, proto: onnx.ModelProto | None = None) -> tuple[Path, Path]:
    """Writes a model whose weights lie in a file beside it; both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path, data = folder / "model.onnx", folder / "model.data"
    onnx.save(proto or matmul_proto(), path, save_as_external_data=True, location=data.name, size_threshold=0)
    return path, data


def external_tensor(name: str, location: str, size: int, element_type: int = TensorProto.FLOAT) -> TensorProto:
    """A tensor of one dimension in an external file."""
    tensor = TensorProto(name=name, data_type=element_type, dims=[size], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def external_places(size: int = 4) -> dict[str, onnx.ModelProto]:
    """Models with external data elsewhere than in initializers: each names "a.bin", sparse tensors "b.bin" as well.

    "y" = "x" + "c", where "c" comes from the files. ONNX Runtime loads those whose names do not end with "list".
    """
    tensor = external_tensor("c", "a.bin", size)
    sparse = helper.make_sparse_tensor(tensor, external_tensor("i", "b.bin", size, TensorProto.INT64), [size])
    values = ("x", TensorProto.FLOAT, [size]), ("y", TensorProto.FLOAT, [size])
    add, call = helper.make_node("Add", ["x", "c"], ["y"]), helper.make_node("F", ["x"], ["y"], domain="d")

    def constant(**attribute: object) -> onnx.NodeProto:
        return helper.make_node("Constant", [], ["c"], **attribute)

    def function(*attributes: onnx.AttributeProto, node: onnx.NodeProto) -> onnx.ModelProto:
        proto = model([call], values[:1], values[1:])
        proto.opset_import.add(domain="d", version=1)
        standard = helper.make_opsetid("", 17)
        proto.functions.append(
            helper.make_function("d", "F", ["x"], ["y"], [node, add], [standard], attribute_protos=attributes)
        )
        return proto

    given = constant()
    given.attribute.add(name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR)
    branch = model([constant(value=tensor)], [], [("c", TensorProto.FLOAT, [size])]).graph
    choice = helper.make_node("If", ["true"], ["c"], then_branch=branch, else_branch=branch)
    true = numpy_helper.from_array(np.array(True), "true")
    result = {
        "attribute": model([constant(value=tensor), add], values[:1], values[1:]),
        "attribute list": model([constant(value=[tensor]), add], values[:1], values[1:]),
        "sparse attribute": model([constant(sparse_value=sparse), add], values[:1], values[1:]),
        "sparse attribute list": model([constant(value=[sparse]), add], values[:1], values[1:]),
        "sparse initializer": model([add], values[:1], values[1:]),
        "sub-graph": model([choice, add], values[:1], values[1:], [true]),
        "function": function(node=constant(value=tensor)),
        "function's default": function(helper.make_attribute("value", tensor), node=given),
    }
    result["sparse initializer"].graph.sparse_initializer.append(sparse)
    return result


def inflated() -> bytes:
    """ "y" = the sum of "x" (both float32 [1]) repeated "count" (int64 [1]) times, all of which are in memory."""
    return parsed(
        "(float[1] x, int64[1] count) => (float[1] y) { many = Expand(x, count) y = ReduceSum <keepdims = 1> (many) }"
    ).SerializeToString()


def endless() -> bytes:
    """ "y" = "x" + 1, repeated "count" (int64 []) times, such as LONG: a run that tests end. "x" is float32 [n]."""
    return parsed(
        """(int64 count, float[n] x) => (float[n] y) {
            y = Loop (count, , x) <body = body (int64 i, bool go, float[n] value) => (bool go_on, float[n] next) {
                go_on = Identity(go)
                next = Add(value, one)
            }>
        }""",
        numpy_helper.from_array(np.ones(1, np.float32), "one"),
    ).SerializeToString()


def cpu_session(
    source: str | Path | bytes | bytearray | memoryview, options: ortmulti.SessionOptions | None = None
) -> ortmulti.InferenceSession:
    """A session on the CPU, also where the default is a GPU."""
    return ortmulti.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def chain() -> bytes:
    """ "y" = the sum of Relu(-x): a run needs as much memory as "x" has, and returns one number."""
    return parsed(
        "(float[n] x) => (float y)"
        "{ negative = Neg(x) positive = Relu(negative) y = ReduceSum <keepdims = 0> (positive) }"
    ).SerializeToString()
