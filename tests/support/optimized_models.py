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


def with_if() -> onnx.ModelProto:
    """Branches with initializers of equal names and different values."""

    def branch(seed: int) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Add", ["z", f"b{seed}"], ["out"])],
            f"branch{seed}",
            [],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 32])],
            [weight("w", 32, 32, seed=seed), weight(f"b{seed}", 512 // 16, seed=seed)],
        )

    return onnx_models.model(
        [
            helper.make_node("If", ["c"], ["y0"], then_branch=branch(1), else_branch=branch(2)),
            helper.make_node("MatMul", ["y0", "outer"], ["y"]),
        ],
        [("c", TensorProto.BOOL, []), ("x", TensorProto.FLOAT, ["n", 32])],
        [("y", TensorProto.FLOAT, ["n", 32])],
        [weight("outer", 32, 32)],
    )


def with_tied_weights() -> onnx.ModelProto:
    return onnx_models.model(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Transpose", ["w"], ["wt"], perm=[1, 0]),
            helper.make_node("MatMul", ["a", "wt"], ["b"]),
            helper.make_node("Add", ["b", "tiny"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 32])],
        [("y", TensorProto.FLOAT, ["n", 32])],
        [weight("w", 32, 32), weight("tiny", 1)],
    )


def with_changed_constants() -> onnx.ModelProto:
    """The transpose optimizer changes bytes, or shape, of initializers and leaves their names."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Add", ["t", "c"], ["u"]),
        helper.make_node("Mul", ["u", "d"], ["v"]),
        helper.make_node("Transpose", ["v"], ["y"], perm=[0, 2, 3, 1]),
    ]
    return onnx_models.model(
        nodes,
        [("x", TensorProto.FLOAT, ["n", 16, 16, 8])],
        [("y", TensorProto.FLOAT, ["n", 16, 16, 8])],
        [weight("c", 1, 8, 16, 16), weight("d", 16, 16)],
    )


def with_folded_weights() -> onnx.ModelProto:
    """One weight becomes another, computed from the file's bytes; one goes into a normalization."""
    return onnx_models.model(
        [
            helper.make_node("Mul", ["w", "w2"], ["folded"]),
            helper.make_node("MatMul", ["x", "folded"], ["a"]),
            helper.make_node("MatMul", ["a", "w"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 32])],
        [("y", TensorProto.FLOAT, ["n", 32])],
        [weight("w", 32, 32), weight("w2", 32, 32)],
    )


def with_new_weights(size: int) -> onnx.ModelProto:
    """One weight becomes another of this many kilobytes."""
    return onnx_models.model(
        [helper.make_node("Neg", ["w"], ["folded"]), helper.make_node("MatMul", ["x", "folded"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 256])],
        [("y", TensorProto.FLOAT, ["n", size])],
        [weight("w", 256, size)],
    )


def with_quantized_weights() -> onnx.ModelProto:
    return onnx_models.model(
        [
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["b"]),
            helper.make_node("DequantizeLinear", ["b", "scale", "zero"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 64])],
        [("y", TensorProto.FLOAT, ["n", 64])],
        [
            weight("q", 64, 64, dtype=np.int8),
            numpy_helper.from_array(np.float32(0.05), "scale"),
            numpy_helper.from_array(np.int8(0), "zero"),
        ],
    )


def with_matmul_n_bits() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    proto = onnx_models.model(
        [
            helper.make_node(
                "MatMulNBits", ["x", "b", "scales"], ["y"], domain="com.microsoft", K=64, N=48, bits=4, block_size=32
            )
        ],
        [("x", TensorProto.FLOAT, ["n", 64])],
        [("y", TensorProto.FLOAT, ["n", 48])],
        [
            numpy_helper.from_array(random.integers(0, 255, (48, 2, 16), dtype=np.uint8), "b"),
            numpy_helper.from_array(random.random(96, dtype=np.float32), "scales"),
        ],
    )
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def with_overridable_weights() -> onnx.ModelProto:
    return onnx_models.model(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "v"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 32]), ("w", TensorProto.FLOAT, [32, 32])],
        [("y", TensorProto.FLOAT, ["n", 32])],
        [weight("w", 32, 32), weight("v", 32, 32)],
    )


def with_a_function() -> onnx.ModelProto:
    proto = onnx_models.model(
        [
            helper.make_node("Constant", [], ["w"], value=weight("value", 32, 32)),
            helper.make_node("Twice", ["x", "w"], ["y"], domain="local"),
        ],
        [("x", TensorProto.FLOAT, ["n", 32])],
        [("y", TensorProto.FLOAT, ["n", 32])],
    )
    opsets = [helper.make_opsetid("", 17)]
    twice = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("MatMul", ["c", "b"], ["d"])]
    proto.functions.append(helper.make_function("local", "Twice", ["a", "b"], ["d"], twice, opsets))
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


def with_half_precision() -> onnx.ModelProto:
    return onnx_models.model(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        [("x", TensorProto.FLOAT16, ["n", 64])],
        [("y", TensorProto.FLOAT16, ["n", 64])],
        [weight("w", 64, 64, dtype=np.float16)],
    )


def with_typed_data() -> onnx.ModelProto:
    values = np.random.default_rng(0).standard_normal(1024)
    return onnx_models.model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 32])],
        [("y", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor("w", TensorProto.FLOAT, [32, 32], values.tolist())],
    )


def convolution() -> onnx.ModelProto:
    return onnx.load_from_string(onnx_models.convolution(channels=16))


PROTOS: dict[str, Callable[[], onnx.ModelProto]] = {
    function.__name__: function
    for function in (
        onnx_models.matmul_proto,
        convolution,
        with_if,
        with_tied_weights,
        with_changed_constants,
        with_folded_weights,
        with_quantized_weights,
        with_matmul_n_bits,
        with_overridable_weights,
        with_a_function,
        with_half_precision,
        with_typed_data,
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
    made_of = key_of(model, CPU, options)
    with cache.stage(made_of) as staged:
        build(staged, model, CPU, options)
        return staged.publish()


def run_entry(entry: Entry, feeds: dict[str, Any]) -> Arrays:
    """The entry in an onnxruntime session, given every shared weight from its file."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    kept = []
    for weight in entry.weights.weights:
        dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
        values = (
            entry.weights.sources[weight.source].read(weight.offset, weight.length).view(dtype).reshape(weight.shape)
        )
        kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.array(values)))
        options.add_initializer(weight.name, kept[-1])
    session = onnxruntime.InferenceSession(entry.model_path, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_ordinary(model: str | bytes, feeds: dict[str, Any], level: int = 99) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def same_bits(one: Arrays, other: Arrays) -> bool:
    return [(a.dtype, a.shape, a.tobytes()) for a in one] == [(b.dtype, b.shape, b.tobytes()) for b in other]
