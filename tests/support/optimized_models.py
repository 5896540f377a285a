"""Models whose optimized graphs differ in kind, and entries of a cache that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti.optimized import Cache, Entry, build, key_of
from tests.support import onnx_models
from tests.support.cached_models import CPU

Arrays = Sequence[np.ndarray]


def weight(name: str, *shape: int, seed: int = 0, dtype: type = np.float32) -> TensorProto:
    values = np.random.default_rng([seed, *name.encode()]).standard_normal(shape) * (8 if dtype is np.int8 else 1)
    return numpy_helper.from_array(values.astype(dtype), name)


def array(name: str, values: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def with_if() -> onnx.ModelProto:
    """Branches with initializers of equal names and different values, their own, and one of the main graph."""
    branch = """{branch} () => (float[n, 32] out) {{
        z = MatMul(x, w)
        o = MatMul(z, outer)
        out = Add(o, {branch})
    }}"""
    proto = onnx_models.parsed(
        f"""(bool c, float[n, 32] x) => (float[n, 32] y) {{
            y0 = If (c) <then_branch = {branch.format(branch="b1")}, else_branch = {branch.format(branch="b2")}>
            y = MatMul(y0, outer)
        }}""",
        weight("outer", 32, 32),
    )
    for seed, attribute in enumerate(proto.graph.node[0].attribute):
        own = attribute.g.name
        attribute.g.initializer.extend([weight("w", 32, 32, seed=seed), weight(own, 32, seed=seed)])
    return proto


def with_a_loop() -> onnx.ModelProto:
    proto = onnx_models.parsed(
        """(float[n, 32] x) => (float[n, 32] y) {
            y = Loop (three, , x) <body = body (int64 i, bool go, float[n, 32] v) => (bool on, float[n, 32] next) {
                on = Identity(go)
                next = MatMul(v, w)
            }>
        }""",
        array("three", np.int64(3)),
    )
    proto.graph.node[0].attribute[0].g.initializer.append(weight("w", 32, 32))
    return proto


def with_tied_weights() -> onnx.ModelProto:
    """One value under two names, used twice each; biases of few bytes; a transposed use."""
    tied = weight("w", 32, 32)
    return onnx_models.parsed(
        """(float[n, 32] x) => (float[n, 32] y) {
            a = MatMul(x, w)
            b = Add(a, bias)
            c = Gemm <transB = 1> (b, again)
            d = Mul(c, scale)
            wt = Transpose <perm = [1, 0]> (w)
            e = MatMul(d, wt)
            y = MatMul(e, again)
        }""",
        tied,
        array("again", numpy_helper.to_array(tied)),
        weight("bias", 32),
        array("scale", np.float32(0.5)),
    )


def with_changed_constants() -> onnx.ModelProto:
    """The transpose optimizer changes bytes, or shape, of initializers and leaves their names."""
    return onnx_models.parsed(
        """(float[n, 16, 16, 8] x) => (float[n, 16, 16, 8] y) {
            t = Transpose <perm = [0, 3, 1, 2]> (x)
            u = Add(t, c)
            v = Mul(u, d)
            y = Transpose <perm = [0, 2, 3, 1]> (v)
        }""",
        weight("c", 1, 8, 16, 16),
        weight("d", 16, 16),
    )


def with_folded_weights() -> onnx.ModelProto:
    """One weight becomes another, computed from the file's bytes; one goes into a normalization."""
    return onnx_models.parsed(
        """(float[n, 32] x) => (float[n, 32] y) {
            folded = Mul(w, w2)
            a = MatMul(x, folded)
            y = MatMul(a, w)
        }""",
        weight("w", 32, 32),
        weight("w2", 32, 32),
    )


def with_new_weights(size: int) -> onnx.ModelProto:
    """One weight becomes another of this many kilobytes."""
    return onnx_models.parsed(
        f"(float[n, 256] x) => (float[n, {size}] y) {{ folded = Neg(w) y = MatMul(x, folded) }}", weight("w", 256, size)
    )


def with_converted_weights() -> onnx.ModelProto:
    return onnx_models.parsed(
        """(float[n, 32] x) => (float[n, 32] y) {
            whole = Cast <to = 1> (half)
            y = MatMul(x, whole)
        }""",
        weight("half", 32, 32, dtype=np.float16),
    )


def with_quantized_weights() -> onnx.ModelProto:
    """Weights as int8 with scales, behind DequantizeLinear, and values between them as uint8."""
    return onnx_models.parsed(
        """(float[n, 64] x) => (float[n, 64] y) {
            xq = QuantizeLinear(x, xs, zero)
            xd = DequantizeLinear(xq, xs, zero)
            w = DequantizeLinear(q, ws, wzero)
            a = MatMul(xd, w)
            b = QuantizeLinear(a, ys, zero)
            y = DequantizeLinear(b, ys, zero)
        }""",
        weight("q", 64, 64, dtype=np.int8),
        *(array(name, np.float32(scale)) for name, scale in (("xs", 0.05), ("ws", 0.01), ("ys", 0.5))),
        array("zero", np.uint8(128)),
        array("wzero", np.int8(0)),
    )


def with_matmul_n_bits() -> onnx.ModelProto:
    """4-bit weights in blocks of 32, and ones of a second node with zero points."""
    random = np.random.default_rng(0)
    node = "com.microsoft.MatMulNBits <K = 64, N = 64, bits = 4, block_size = 32>"
    return onnx_models.parsed(
        f"(float[n, 64] x) => (float[n, 64] y) {{ a = {node} (x, b, scales) y = {node} (a, c, scales, zeros) }}",
        *(array(name, random.integers(0, 256, (64, 2, 16), np.uint8)) for name in "bc"),
        array("zeros", random.integers(0, 256, 64, np.uint8)),
        array("scales", random.random(128, np.float32) / 8),
    )


def with_overridable_weights() -> onnx.ModelProto:
    return onnx_models.parsed(
        "(float[n, 32] x, float[32, 32] w) => (float[n, 32] y) { a = MatMul(x, w) y = MatMul(a, v) }",
        weight("w", 32, 32),
        weight("v", 32, 32),
    )


def with_a_function() -> onnx.ModelProto:
    proto = onnx_models.parsed(
        """(float[n, 32] x) => (float[n, 32] y) {
            w = Constant()
            y = local.Twice(x, w)
        }
        <domain: "local", opset_import: ["": 17]> Twice (a, b) => (d) {
            c = MatMul(a, b)
            d = MatMul(c, b)
        }"""
    )
    proto.graph.node[0].attribute.append(helper.make_attribute("value", weight("value", 32, 32)))
    return proto


def with_half_precision() -> onnx.ModelProto:
    return onnx_models.parsed(
        "(float16[n, 64] x) => (float16[n, 64] y) { a = MatMul(x, w) y = Relu(a) }",
        weight("w", 64, 64, dtype=np.float16),
    )


def with_typed_data() -> onnx.ModelProto:
    values = np.random.default_rng(0).standard_normal(1024).tolist()
    return onnx_models.parsed(
        "(float[n, 32] x) => (float[n, 32] y) { y = MatMul(x, w) }",
        helper.make_tensor("w", TensorProto.FLOAT, [32, 32], values),
    )


def with_constant_outputs() -> onnx.ModelProto:
    return onnx.load_from_string(onnx_models.constant_outputs())


def convolution() -> onnx.ModelProto:
    return onnx.load_from_string(onnx_models.convolution(channels=16))


PROTOS: dict[str, Callable[[], onnx.ModelProto]] = {
    function.__name__: function
    for function in (
        onnx_models.matmul_proto,
        convolution,
        with_if,
        with_a_loop,
        with_tied_weights,
        with_changed_constants,
        with_folded_weights,
        with_converted_weights,
        with_quantized_weights,
        with_matmul_n_bits,
        with_overridable_weights,
        with_a_function,
        with_half_precision,
        with_typed_data,
        with_constant_outputs,
    )
}


def write(folder: Path, proto: onnx.ModelProto, how: str) -> str | bytes:
    folder.mkdir(exist_ok=True)
    if how == "bytes":
        return proto.SerializeToString()
    path = folder / "model.onnx"
    # ONNX's own function puts sub-graphs' tensors outside, too, and shares nothing between equal ones.
    onnx.save(proto, path, save_as_external_data=how == "external", location="model.data", size_threshold=0)
    return str(path)


def make(cache: Cache, model: str | bytes, options: ortmulti.SessionOptions | None = None) -> Entry:
    made_of = key_of(ortmulti.Model(model), CPU, options)
    with cache.stage(made_of) as staged:
        build(staged, ortmulti.Model(model), CPU, options)
        return staged.publish()


def run_entry(entry: Entry, feeds: dict[str, Any], without: str = "") -> Arrays:
    """The entry in an onnxruntime session, given every shared weight from its file, but one of this name."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4 if without else 2
    kept = []
    for weight in entry.weights.weights:
        dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
        data = entry.weights.sources[weight.source].read(weight.offset, weight.length)
        if weight.name != without:
            kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.array(data.view(dtype).reshape(weight.shape))))
            options.add_initializer(weight.name, kept[-1])
    session = onnxruntime.InferenceSession(entry.model_path, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_ordinary(model: str | bytes, feeds: dict[str, Any], level: int = 99) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def same_bits(one: Arrays, other: Arrays) -> bool:
    return [(a.dtype, a.shape, a.tobytes()) for a in one] == [(b.dtype, b.shape, b.tobytes()) for b in other]
