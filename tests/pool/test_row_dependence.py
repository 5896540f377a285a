"""What a model's graph says about rows that depend on each other: each cause, and no false warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import ortmulti
from ortmulti import Batching, Model, check_batching
from ortmulti.bench import models
from ortmulti.pool.row_axes import NONE
from ortmulti.pool.row_dependence import read_graph, walk
from tests.support import onnx_models
from tests.support.command import invoke
from tests.support.onnx_models import with_weights as model

RANDOM = np.random.default_rng(0)
W8, W4 = RANDOM.standard_normal((8, 8)).astype(np.float32), RANDOM.standard_normal((8, 4)).astype(np.float32)
IMAGE = RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float32)
ONE = np.ones(8, np.float32)


def found(path: Any, axis: int = 0) -> list[str]:
    graph = read_graph(Model(path))
    if graph is None:
        return []
    known = walk(graph, axis)
    with_rows = [name for name in graph.nodes.outputs if known.axis(name) != NONE]
    return list(dict.fromkeys(text for name in with_rows for text in known.mixing(name)))


AXES = {"first": np.array([0]), "last": np.array([-1]), "shape": np.array([0, -1]), "rows": np.array([2, -1])}
# Each model's answers depend on the batch, and check_batching finds that, too.
DEPENDENT = {
    "ReduceMean 'm' computes over the batch": "m = ReduceMean <axes = [0]> (x)\n y = Sub(x, m)",
    "ReduceSum 's' computes over the batch": "s = ReduceSum(x, first)\n y = Sub(x, s)",
    "ReduceMax 'm' computes over the batch": "m = ReduceMax <keepdims = 0> (x)\n y = Sub(x, m)",
    "Softmax 'y' normalizes over the batch": "y = Softmax <axis = 0> (x)",
    "LogSoftmax 's' normalizes over the batch": (
        "t = Transpose <perm = [1, 0]> (x)\n s = LogSoftmax <axis = -1> (t)\n y = Transpose <perm = [1, 0]> (s)"
    ),
    "CumSum 'y' sums over the batch": "z = Constant <value = int64 {0}> ()\n y = CumSum(x, z)",
    "LayerNormalization 'y' normalizes over the batch": (
        "h = Shape(x)\n a = Relu(x)\n o = Constant <value = float[1] {1}> ()\n"
        "s = Expand(o, h)\n y = LayerNormalization <axis = 0> (a, s)"
    ),
    "MeanVarianceNormalization 'y' normalizes over the batch": "y = MeanVarianceNormalization <axes = [0]> (x)",
    "LpNormalization 'y' normalizes over the batch": "y = LpNormalization <axis = 0> (x)",
    "DynamicQuantizeLinear 'q' has one scale for all rows": (
        "q, s, z = DynamicQuantizeLinear(x)\n y = DequantizeLinear(q, s, z)"
    ),
    "ReduceSum 'g' computes over the batch": (
        "t = Transpose(x)\n o = Shape <end = 1> (x)\n f = ConstantOfShape <value = float[1] {1}> (o)\n"
        "g = ReduceSum <keepdims = 0> (t, last)\n y = Sub(x, g)"
    ),
    "Mul 'y' computes with the size of the batch": (
        "s = Shape(x)\n b = Gather(s, zero)\n f = Cast <to = 1> (b)\n y = Mul(x, f)"
    ),
    "Div 'y' computes with the size of the batch": (
        "s = Shape <start = 0, end = 1> (x)\n f = Cast <to = 1> (s)\n r = Sqrt(f)\n y = Div(x, r)"
    ),
}


# A count of what a run finds, or a choice by the batch's size. The first text is what is named.
POSITIVE = "p = Greater(x, nothing)\n f = NonZero(p)\n"
COUNTED = {
    "Add 'y' counts over the batch": POSITIVE + "s = Size(f)\n c = Cast <to = 1> (s)\n y = Add(x, c)",
    "Mul 'y' counts over the batch": (
        POSITIVE + "t = Transpose(f)\n s = Shape(t)\n b = Gather(s, zero)\n c = Cast <to = 1> (b)\n y = Mul(x, c)"
    ),
    "Sub 'y' counts over the batch": (
        POSITIVE + "r = Gather <axis = 0> (f, zero)\n s = Size(r)\n c = Cast <to = 1> (s)\n y = Sub(x, c)"
    ),
    "Pow 'y' counts over the batch": (
        POSITIVE + "t = Transpose(f)\n g = Gather <axis = 1> (t, zero)\n s = Shape(g)\n c = Cast <to = 1> (s)\n"
        "d = Div(one, c)\n a = Abs(x)\n y = Pow(a, d)"
    ),
    "Where 'y' counts over the batch": (
        "u = Unique(x)\n s = Size(u)\n c = Greater(s, many)\n n = Neg(x)\n y = Where(c, x, n)"
    ),
    "Div 'y' counts over the batch": (
        "m = ReduceSum <keepdims = 0> (x, last)\n p = Greater(m, nothing)\n g = Compress <axis = 0> (x, p)\n"
        "s = Shape <end = 1> (g)\n c = Cast <to = 1> (s)\n d = Add(c, one)\n y = Div(x, d)"
    ),
    "If 'y' counts over the batch": (
        POSITIVE + "s = Size(f)\n c = Greater(s, many)\n"
        "y = If (c) <then_branch = g () => (float[n,8] o) { o = Neg(x) },"
        "else_branch = h () => (float[n,8] o) { o = Identity(x) }>"
    ),
    "If 'y' chooses by the size of the batch": (
        "s = Shape(x)\n b = Gather(s, zero)\n c = Greater(b, two)\n"
        "y = If (c) <then_branch = g () => (float[n,8] o) { o = Neg(x) },"
        "else_branch = h () => (float[n,8] o) { o = Identity(x) }>"
    ),
    "Scan 'e' goes along the batch as if it were time": (
        "e, y = Scan <num_scan_inputs = 1, body = g (float[8] a, float[8] r) => (float[8] b, float[8] o)"
        "{ b = Add(a, r)\n o = Identity(b) }> (start, x)"
    ),
}
VALUES = {"nothing": np.float32(0), "many": np.array(14), "two": np.array(2), "one": np.float32(1), "start": ONE}


@pytest.mark.parametrize("text", COUNTED)
def test_counts_over_the_batch_and_choices_by_its_size_are_named(text: str) -> None:
    graph = model(f"(float[n,8] x) => (float[n,8] y) {{ {COUNTED[text]} }}", zero=np.array(0), **AXES, **VALUES)
    assert found(graph) == [text]
    check = check_batching(graph, Batching(4))
    assert not check.independent


@pytest.mark.parametrize("text", DEPENDENT, ids=lambda text: text.split(" ", 1)[0])
def test_each_cause_is_named(text: str) -> None:
    graph = model(f"(float[n,8] x) => (float[n,8] y) {{ {DEPENDENT[text]} }}", zero=np.array(0), **AXES)
    [what] = found(graph)
    assert what == text
    assert not check_batching(graph, Batching(4)).independent


def test_a_product_that_sums_over_the_batch_is_named() -> None:
    graph = model("(float[8,n] x) => (float[8,k] y) { y = MatMul(x, w) }", w=W4)
    assert found(graph, axis=1) == ["MatMul 'y' sums over the batch"]
    assert found(graph, axis=0) == []
    graph = model("(float[n,8] x) => (float[8,8] y) { y = Gemm <transA = 1> (x, w) }", w=W8)
    assert found(graph) == ["Gemm 'y' sums over the batch"]


def test_weights_that_are_inputs_too_are_no_rows() -> None:
    made = onnx_models.parsed(
        "(float[n,8] x, float[8,8] v) => (float[n,8] y) {"
        "k = ReduceL2 <axes = [0], keepdims = 1> (v)\n w = Div(v, k)\n p = MatMul(x, w)\n y = Softmax <axis = 0> (p) }"
    )
    made.graph.initializer.append(numpy_helper.from_array(W8, "v"))
    assert found(made.SerializeToString()) == ["Softmax 'y' normalizes over the batch"]


def test_products_of_rows_with_rows_are_named() -> None:
    graph = model("(float[n,8] x) => (float[8,k] y) { t = Transpose(x)\n y = MatMul(t, x) }")
    assert found(graph) == ["MatMul 'y' sums over the batch"]
    graph = model(
        "(float[n,8] x) => (float[n,8] y) { m = ReduceMean <axes = [0]> (x)\n s = Shape <start = 0, end = 1> (x)\n"
        "r = Concat <axis = 0> (s, one)\n y = Tile(m, r) }",
        one=np.array([1]),
    )
    assert found(graph) == ["ReduceMean 'm' computes over the batch"]


def test_a_batch_as_time_is_named() -> None:
    weights = {"w": W8[None, :, :].repeat(4, 1)[:, :32], "r": np.zeros((1, 32, 8), np.float32)}
    text = "(float[n,1,8] x) => (float[n,1,1,8] y) { y = LSTM <hidden_size = 8> (x, w, r) }"
    assert found(model(text, **weights)) == ["LSTM 'y' goes along the batch as if it were time"]
    assert found(model(text, **weights), axis=1) == []


def test_before_opset_13_a_softmax_is_over_all_later_dimensions() -> None:
    text = "(float[m,n,8] x) => (float[m,n,8] y) { y = Softmax(x) }"
    assert found(model(text, opset=12), axis=1) == ["Softmax 'y' normalizes over the batch"]
    assert found(model(text, opset=12), axis=0) == []
    assert found(model(text, opset=13), axis=1) == []


ATTENTION = """
    h = Gather(table, x)
    m = ReduceMean <axes = [-1]> (h)
    d = Sub(h, m)
    p = Pow(d, two)
    v = ReduceMean <axes = [-1]> (p)
    s = Sqrt(v)
    normal = Div(d, s)
    product = MatMul(normal, w)
    shape = Shape(x)
    b = Gather(shape, zero)
    l = Gather(shape, one)
    bu = Unsqueeze(b, first)
    lu = Unsqueeze(l, first)
    heads = Concat <axis = 0> (bu, lu, split)
    q4 = Reshape(product, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (q4)
    k = Transpose <perm = [0, 2, 3, 1]> (q4)
    scores = MatMul(q, k)
    mask0 = Cast <to = 1> (mask)
    mask4 = Unsqueeze(mask0, places)
    masked = Add(scores, mask4)
    a = Softmax <axis = -1> (masked)
    o = MatMul(a, q)
    ot = Transpose <perm = [0, 2, 1, 3]> (o)
    back = Concat <axis = 0> (bu, lu, width)
    z = Reshape(ot, back)
    sum = ReduceSum <keepdims = 0> (z, middle)
    y = Softmax <axis = 1> (sum)
"""
TEXT = model(
    f"(int64[batch,sequence] x, int64[batch,sequence] mask) => (float[batch,8] y) {{ {ATTENTION} }}",
    table=RANDOM.standard_normal((100, 8)).astype(np.float32),
    w=W8,
    two=np.float32(2),
    zero=np.array(0),
    one=np.array(1),
    first=np.array([0]),
    middle=np.array([1]),
    split=np.array([2, 4]),
    width=np.array([8]),
    places=np.array([1, 2]),
)
INDEPENDENT = {
    "text": TEXT,
    "image": model(
        "(float[n,3,8,8] x) => (float[n,4] y) { c = Conv <pads = [1,1,1,1]> (x, k)\n r = Relu(c)\n"
        "g = GlobalAveragePool(r)\n f = Flatten <axis = 1> (g)\n y = Softmax <axis = -1> (f) }",
        k=IMAGE,
    ),
    "rows": model(
        "(float[n,8] x) => (float[n,4] y) { s = Shape(x)\n b = Gather <axis = 0> (s, first)\n"
        "h = Concat <axis = 0> (b, rows)\n r = Reshape(x, h)\n m = ReduceSum <keepdims = 0> (r, two)\n"
        "y = Gemm(m, w) }",
        first=np.array([0]),
        two=np.array([1]),
        rows=np.array([2, 4]),
        w=W4[:4],
    ),
    # The size is used for shapes alone.
    "tokens": model(
        "(float[n,5,8] x) => (float[n,6,8] y) { s = Shape <end = 1> (x)\n h = Concat <axis = 0> (s, rest)\n"
        "t = Expand(token, h)\n y = Concat <axis = 1> (t, x) }",
        rest=np.array([1, 8]),
        token=np.ones((1, 1, 8), np.float32),
    ),
    # A total has no rows: the pool joins no requests for it.
    "a total": model("(float[n,8] x) => (float[n,8] y) { t = ReduceSum <keepdims = 0> (x)\n y = Relu(x) }"),
    # Only the shape of what depends on other rows is used.
    "shape": model(
        "(float[n,8] x) => (float[n,8] y) { m = CumSum(x, zero)\n s = Shape(m)\n"
        "e = ConstantOfShape(s)\n y = Add(x, e) }",
        zero=np.array(0),
    ),
    "width": model(
        "(float[n,3,h,w] x) => (float[n,3,h,w] y) { s = Shape(x)\n q = Add(s, ones)\n f = Cast <to = 1> (q)\n"
        "k = Gather(f, last)\n y = Div(x, k) }",
        ones=np.ones(4, np.int64),
        last=np.array(3),
    ),
    "count": model(
        "(float[n,t,8] x) => (float[n,8] y) { s = ReduceSum <keepdims = 0> (x, one)\n q = Size(x)\n h = Shape(x)\n"
        "b = Gather(h, zero)\n k = Div(q, b)\n f = Cast <to = 1> (k)\n y = Div(s, f) }",
        one=np.array([1]),
        zero=np.array(0),
    ),
    "transposed weights": model(
        "(float[n,8] x) => (float[n,4] y) { p = com.microsoft.FusedMatMul <transB = 1> (w, x)\n"
        "y = Transpose <perm = [1, 0]> (p) }",
        w=W4.T,
    ),
    "normalized weights": model(
        "(float[n,8] x) => (float[n,8] y) { v = MeanVarianceNormalization <axes = [-1]> (w)\n y = MatMul(x, v) }", w=W8
    ),
    # Sums that cancel out round otherwise in runs of other sizes.
    "nothing": model(
        "(float[n,128,256] x) => (float[n,256] y) { m = ReduceMean <axes = [1], keepdims = 1> (x)\n d = Sub(x, m)\n"
        "y = ReduceMean <axes = [1], keepdims = 0> (d) }"
    ),
    "bytes": model(
        "(uint8[n,100,2048] x) => (uint8[n,2048] y) { f = Cast <to = 1> (x)\n g = Div(f, c)\n"
        "m = ReduceMean <axes = [1], keepdims = 0> (g)\n q = Mul(m, c)\n r = Round(q)\n y = Cast <to = 2> (r) }",
        c=np.float32(255),
    ),
    # A count shapes alone: rows that are chosen are packed, computed, and put back.
    "packed": model(
        "(float[n,8] x) => (float[n,8] y) { p = Greater(x, nothing)\n f = NonZero(p)\n t = Transpose(f)\n"
        "g = GatherND(x, t)\n s = Shape(t)\n b = Gather(s, first)\n o = ConstantOfShape <value = float[1] {1}> (b)\n"
        "e = Expand(nothing, b)\n a = Add(o, e)\n m = Add(g, a)\n r = Reshape(m, b)\n y = ScatterND(x, t, r) }",
        nothing=np.float32(0),
        first=np.array([0]),
    ),
    # The number of dimensions is no count.
    "dimensions": model(
        "(float[n,8] x) => (float[n,8] y) { p = Greater(x, nothing)\n f = NonZero(p)\n s = Shape(f)\n"
        "b = Gather(s, first)\n c = Cast <to = 1> (b)\n y = Mul(x, c) }",
        nothing=np.float32(0),
        first=np.array([0]),
    ),
    # Its state is no row's, and what is scanned are columns.
    "scanned columns": model(
        "(float[n,8] x) => (float[n,8] y) { h = ReduceMean <axes = [1], keepdims = 0> (x)\n"
        "e, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],"
        "body = g (float[n] a, float[n] r) => (float[n] b, float[n] o) { b = Add(a, r)\n o = Identity(b) }> (h, x) }"
    ),
    "scanned rows": model(
        "(float[n,8] x) => (float[n,8] y) {"
        "y = Scan <num_scan_inputs = 1, body = g (float[8] r) => (float[8] o) { o = Neg(r) }> (x) }"
    ),
    # Only another dimension's size chooses.
    "chosen by columns": model(
        "(float[n,k] x) => (float[n,k] y) { s = Shape(x)\n b = Gather(s, one)\n c = Greater(b, one)\n"
        "y = If (c) <then_branch = g () => (float[n,k] o) { o = Neg(x) },"
        "else_branch = h () => (float[n,k] o) { o = Identity(x) }> }",
        one=np.array(1),
    ),
    # The mean of the weights is no row's.
    "weights": model("(float[n,8] x) => (float[n,8] y) { m = ReduceMean(w)\n y = Add(x, m) }", w=W8),
    "unknown": model(
        '(float[n,8] x) => (float[n,8] y) { e = Einsum <equation = "ij->ij"> (x)\n y = Softmax <axis = -1> (e) }'
    ),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_rows_are_not_suspected(name: str) -> None:
    assert found(INDEPENDENT[name]) == []
    assert check_batching(INDEPENDENT[name], Batching(4)).independent


@pytest.mark.parametrize(("kind", "options"), [("resnet50", {}), ("tiny-kernels", {}), ("matmul", {"megabytes": 4})])
def test_models_of_the_benchmarks_are_not_suspected(kind: str, options: dict[str, int], tmp_path: Path) -> None:
    assert found(str(models.make(kind, tmp_path, **options))) == []


def test_what_is_no_model_says_nothing() -> None:
    for end in range(7, len(TEXT), 7):
        assert found(TEXT[:end]) in ([], found(TEXT))
    for at in range(0, len(TEXT), 5):
        found(TEXT[:at] + bytes([255 - TEXT[at]]) + TEXT[at + 1 :])


def test_a_load_warns_of_a_quantized_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain, quantized = tmp_path / "plain.onnx", tmp_path / "quantized.onnx"
    plain.write_bytes(TEXT)
    # With 1.21 it needs sympy.
    quantization = pytest.importorskip("onnxruntime.quantization", exc_type=ImportError)
    quantization.quantize_dynamic(plain, quantized, weight_type=quantization.QuantType.QInt8)
    for path in (plain, quantized):
        ortmulti.load(path, "cpu", batching=Batching(4)).close()
        ortmulti.load(path, "cpu").close()
    [warning] = [record.getMessage() for record in caplog.records if record.name == "ortmulti"]
    assert warning.startswith(f"'{quantized}': requests for 'y' run alone, not joined: output 'y' depends on the other")
    assert "has one scale for all rows" in warning
    shown = invoke("inspect", quantized, "--batching")
    assert "output 'y' depends on the other rows: DynamicQuantizeLinear" in " ".join(shown.stdout.split())


def test_a_model_whose_graph_cannot_be_read_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = onnx_models.options(
        {"session.save_model_format": "ORT"}, optimized_model_filepath=str(tmp_path / "a.ort")
    )
    onnx_models.cpu_session(INDEPENDENT["weights"], options).close()
    with ortmulti.load(tmp_path / "a.ort", "cpu", batching=Batching(4)) as pool:
        assert pool.run({"x": np.zeros((1, 8), np.float32)})[0].shape == (1, 8)
    assert not [record for record in caplog.records if record.name == "ortmulti"]
