"""Sessions over split models compute what ordinary sessions do, bit for bit: with onnxruntime's own package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmulti import _core
from ortmulti.bench import models
from ortmulti.bench.models import phi3_mini
from ortmulti.bench.models._writer import write
from tests.support import onnx_models

SIZE = 64
"""Rows and columns of the weights: 16 KiB in float32."""

RANDOM = np.random.default_rng(0)


def options(level: Any, **entries: str) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    made.graph_optimization_level = level
    made.intra_op_num_threads = 1
    made.log_severity_level = 3
    for key, value in entries.items():
        made.add_session_config_entry("session." + key, value)
    return made


ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def session(model: Path, of: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(model), of, providers=["CPUExecutionProvider"])


class Split:
    """A model optimized and saved by onnxruntime, then split."""

    def __init__(self, original: Path, folder: Path, *unshared: str, level: Any = ALL) -> None:
        self.folder = folder
        saving = options(level, disable_prepacking="1")
        saving.optimized_model_filepath = str(folder / "saved.onnx")
        session(original, saving)
        self.weights, self.own_bytes = _core.split_optimized_model(
            str(folder / "saved.onnx"), str(original), str(original.parent), str(folder), unshared
        )
        (folder / "saved.onnx").unlink()

    def session(self, without: str | None = None) -> onnxruntime.InferenceSession:
        of = options(NONE)
        held = []
        make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
        for weight in self.weights.weights:
            data = self.weights.sources[weight.source].read(weight.offset, weight.length)
            if weight.name != without:
                held.append(make(typed(data, weight.data_type, weight.shape), weight.data_type))
                of.add_initializer(weight.name, held[-1])
        made = session(self.folder / "model.onnx", of)
        made.held = held  # as long as the session
        return made


def typed(data: np.ndarray, data_type: int, shape: list[int]) -> np.ndarray:
    return data.view(helper.tensor_dtype_to_np_dtype(data_type)).reshape(shape)


def matrix(name: str, *shape: int, dtype: Any = np.float32) -> TensorProto:
    values = (RANDOM.standard_normal(shape or (SIZE, SIZE)) / 8).astype(dtype)
    return numpy_helper.from_array(values, name)


def small(
    nodes: list[onnx.NodeProto], weights: list[TensorProto], opsets: dict[str, int] | None = None
) -> onnx.ModelProto:
    """ "y" = nodes("x"), float32 ["n", SIZE]."""
    shape: onnx_models.Shape = ["n", SIZE]
    made = onnx_models.model(nodes, [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)], weights)
    for domain, version in (opsets or {}).items():
        made.opset_import.append(helper.make_opsetid(domain, version))
    return made


def branches() -> onnx.ModelProto:
    """Equal names in sibling branches, a branch with a weight of its own, and one of the main graph in both."""

    def branch(own: TensorProto, equal: TensorProto, name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("MatMul", ["x", "equal"], [f"{name}1"]),
            helper.make_node("MatMul", [f"{name}1", own.name], [f"{name}2"]),
            helper.make_node("MatMul", [f"{name}2", "outer"], [f"{name}3"]),
        ]
        outputs = [helper.make_tensor_value_info(f"{name}3", TensorProto.FLOAT, ["n", SIZE])]
        return helper.make_graph(nodes, name, [], outputs, [own, equal])

    condition = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
    ]
    then, otherwise = (branch(matrix(f"own {n}"), matrix("equal"), n) for n in ("then", "else"))
    node = helper.make_node("If", ["positive"], ["y"], then_branch=then, else_branch=otherwise)
    return small([*condition, node], [matrix("outer"), numpy_helper.from_array(np.float32(0), "zero")])


def loop() -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("MatMul", ["v", "in the loop"], ["next"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, ["n", SIZE])],
        [info("on", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, ["n", SIZE])],
        [matrix("in the loop")],
    )
    return small(
        [helper.make_node("Loop", ["three", "", "x"], ["y"], body=body)],
        [numpy_helper.from_array(np.int64(3), "three")],
    )


def tied_and_tiny() -> onnx.ModelProto:
    """One value under two names, used twice each; biases of few bytes; a transposed use."""
    tied = matrix("a")
    again = numpy_helper.from_array(numpy_helper.to_array(tied), "b")
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["1"]),
        helper.make_node("Add", ["1", "bias"], ["2"]),
        helper.make_node("Gemm", ["2", "b"], ["3"], transB=1),
        helper.make_node("Mul", ["3", "scale"], ["4"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["4", "t"], ["5"]),
        helper.make_node("MatMul", ["5", "b"], ["y"]),
    ]
    return small(nodes, [tied, again, matrix("bias", SIZE), numpy_helper.from_array(np.float32(0.5), "scale")])


def changed_under_its_name() -> onnx.ModelProto:
    """The transpose optimizer transposes the addend and keeps its name."""
    nodes = [
        helper.make_node("MatMul", ["w", "w"], ["square"]),
        helper.make_node("Transpose", ["x_square"], ["t"], perm=[1, 0]),
        helper.make_node("Add", ["t", "w"], ["sum"]),
        helper.make_node("Transpose", ["sum"], ["back"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "back"], ["y"]),
    ]
    reshape = helper.make_node("ReduceMean", ["cube"], ["x_square"], axes=[0], keepdims=0)
    cube = helper.make_node("MatMul", ["wide", "square"], ["cube"])
    unsqueeze = helper.make_node("Unsqueeze", ["x", "axis"], ["column"])
    wide = helper.make_node("Mul", ["column", "w"], ["wide"])
    axis = numpy_helper.from_array(np.array([1]), "axis")
    return small([nodes[0], unsqueeze, wide, cube, reshape, *nodes[1:]], [matrix("w"), axis])


def folded() -> onnx.ModelProto:
    """A product of weights that optimization computes ahead, and one that is only converted."""
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["ab"]),
        helper.make_node("Cast", ["half"], ["whole"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "ab"], ["1"]),
        helper.make_node("MatMul", ["1", "whole"], ["2"]),
        helper.make_node("MatMul", ["2", "a"], ["y"]),
    ]
    return small(nodes, [matrix("a"), matrix("b"), matrix("half", SIZE, SIZE, dtype=np.float16)])


def overridable() -> onnx.ModelProto:
    made = small([helper.make_node("MatMul", ["x", "w"], ["y"])], [matrix("w")])
    made.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [SIZE, SIZE]))
    return made


def quantized_linear() -> onnx.ModelProto:
    """Weights as int8 with scales, behind DequantizeLinear, and activations between them as uint8."""
    integers = numpy_helper.from_array(RANDOM.integers(-128, 128, (SIZE, SIZE), np.int8), "w")
    scalars = [numpy_helper.from_array(np.float32(s), n) for n, s in (("xs", 0.05), ("ws", 0.01), ("ys", 0.5))]
    zeros = [numpy_helper.from_array(np.uint8(128), "zero"), numpy_helper.from_array(np.int8(0), "wzero")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wzero"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "ys", "zero"], ["mq"]),
        helper.make_node("DequantizeLinear", ["mq", "ys", "zero"], ["y"]),
    ]
    return small(nodes, [integers, *scalars, *zeros])


def matmul_nbits() -> onnx.ModelProto:
    """4-bit weights in blocks of 32, and ones of a second node with zero points."""

    def node(x: str, y: str, w: str, *more: str) -> onnx.NodeProto:
        attributes = {"K": SIZE, "N": SIZE, "bits": 4, "block_size": 32}
        return helper.make_node("MatMulNBits", [x, w, "scales", *more], [y], domain="com.microsoft", **attributes)

    def integers(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(RANDOM.integers(0, 256, shape, np.uint8), name)

    scales = numpy_helper.from_array(RANDOM.random(SIZE * 2, np.float32) / 8, "scales")
    weights = [integers("w1", SIZE, 2, 16), integers("w2", SIZE, 2, 16), integers("zeros", SIZE)]
    nodes = [node("x", "1", "w1"), node("1", "y", "w2", "zeros")]
    return small(nodes, [*weights, scales], {"com.microsoft": 1})


def write_inline(make: Callable[[], Any]) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        made = make()
        content = made if isinstance(made, bytes) else made.SerializeToString()
        (folder / "model.onnx").write_bytes(content)
        return folder / "model.onnx"

    return written


def write_external(make: Callable[[], Any]) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        made = make()
        proto = onnx.ModelProto.FromString(made) if isinstance(made, bytes) else made
        # Shapes and the like stay inside: ONNX Runtime infers from them before it reads external data.
        path = folder / "model.onnx"
        onnx.save(proto, path, save_as_external_data=True, location="model.data", size_threshold=512)
        return path

    return written


def generated(name: str, **given: Any) -> Callable[[Path], Path]:
    return lambda folder: models.make(name, folder, **given)


def decoder(precision: str) -> Callable[[Path], Path]:
    size = phi3_mini.Dimensions(hidden=64, intermediate=96, heads=4, vocabulary=128, positions=32)
    return lambda folder: write(phi3_mini.build(2, precision, size), folder, "model", {}, 0)


SMALL: dict[str, Callable[[], Any]] = {
    "matmul": onnx_models.matmul,
    "convolution": lambda: onnx_models.convolution(32),
    "outputs": onnx_models.constant_outputs,
    "branches": branches,
    "loop": loop,
    "tied": tied_and_tiny,
    "transposed": changed_under_its_name,
    "folded": folded,
    "overridable": overridable,
    "qdq": quantized_linear,
    "nbits": matmul_nbits,
}
CASES = {f"{name} inline": write_inline(make) for name, make in SMALL.items()}
CASES |= {f"{name} external": write_external(make) for name, make in SMALL.items()}
CASES |= {
    "decoder fp32": decoder("fp32"),
    "decoder fp16": decoder("fp16"),
    "resnet50": generated("resnet50"),
    "tiny-kernels": generated("tiny-kernels"),
    "generated matmul": generated("matmul", megabytes=3),
}


def feeds(made: onnxruntime.InferenceSession) -> list[dict[str, np.ndarray]]:
    """Two of them, whose sums have different signs."""
    found = []
    for sign in (1, -1):
        random = np.random.default_rng(7)
        feed = {}
        for value in made.get_inputs():
            shape = [size if isinstance(size, int) else 2 for size in value.shape]
            if value.type == "tensor(int64)":
                feed[value.name] = random.integers(0, 100, shape)
            else:
                feed[value.name] = (sign * random.random(shape)).astype(np.float32)
        found.append(feed)
    return found


def assert_same(one: onnxruntime.InferenceSession, other: onnxruntime.InferenceSession) -> None:
    for feed in feeds(one):
        for expected, found in zip(one.run(None, feed), other.run(None, feed), strict=True):
            assert expected.dtype == found.dtype
            assert expected.tobytes() == found.tobytes()


# One level is enough of the large ones.
@pytest.mark.parametrize(
    ("name", "level"),
    [
        (name, level)
        for name in CASES
        for level in ("all", "extended", "none")
        if level == "all" or name not in ("resnet50", "tiny-kernels")
    ],
)
def test_outputs_are_those_of_an_ordinary_session(tmp_path: Path, name: str, level: str) -> None:
    levels = {"all": ALL, "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, "none": NONE}
    original = CASES[name](tmp_path)
    (tmp_path / "entry").mkdir()
    split = Split(original, tmp_path / "entry", level=levels[level])
    ordinary = session(original, options(levels[level]))

    over_weights = split.session()
    assert_same(ordinary, over_weights)

    # Each of the shared weights is one that ONNX Runtime took: without it there is no session.
    for weight in split.weights.weights[:3] if len(split.weights.weights) > 5 else split.weights.weights:
        with pytest.raises(Exception, match="out of bounds or can not be read"):
            split.session(without=weight.name)


@pytest.mark.parametrize("name", ["matmul inline", "branches external", "decoder fp32", "qdq external"])
def test_unshared_weights_are_read_by_onnx_runtime_itself(tmp_path: Path, name: str) -> None:
    original = CASES[name](tmp_path)
    folders = [tmp_path / "all shared", tmp_path / "none shared"]
    for folder in folders:
        folder.mkdir()
    weights = [weight.name for weight in Split(original, folders[0]).weights.weights]
    split = Split(original, folders[1], *weights)
    assert split.weights.weights == []
    assert_same(session(original, options(ALL)), session(folders[1] / "model.onnx", options(NONE)))


def test_an_untouched_model_is_stored_without_its_weights(tmp_path: Path) -> None:
    original = write_external(onnx_models.matmul)(tmp_path)
    (tmp_path / "entry").mkdir()
    split = Split(original, tmp_path / "entry")
    assert split.own_bytes == 0
    assert len(split.weights.weights) == 2
    assert sum(path.stat().st_size for path in (tmp_path / "entry").iterdir()) < 1000


def test_a_weight_that_changed_under_its_name_is_stored_anew(tmp_path: Path) -> None:
    original = write_external(changed_under_its_name)(tmp_path)
    (tmp_path / "entry").mkdir()
    split = Split(original, tmp_path / "entry")
    [file] = [weight.source for weight in split.weights.weights if weight.name == "w"]
    assert Path(split.weights.sources[file].name).name == "weights.bin"
