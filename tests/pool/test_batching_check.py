"""Whether joined requests get the answers that they get alone: what mixes rows, and what does not."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ortmulti
from ortmulti import Batching, check_batching
from ortmulti.bench import models
from ortmulti.errors import InvalidArgument
from ortmulti.pool.answers import difference, within_rounding
from tests.support.onnx_models import with_weights as model

WEIGHTS = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


PRODUCT = model("(float[n,8] x) => (float[n,4] y) { y = MatMul(x, w) }", w=WEIGHTS)
MEAN = model("(float[n,8] x) => (float[n,8] y) { m = ReduceMean <axes = [0]> (x)\n y = Sub(x, m) }")
QUANTIZED = model(
    "(float[n,8] x) => (float[n,4] y) {"
    "q, s, z = DynamicQuantizeLinear(x)\n i = MatMulInteger(q, w, z)\n f = Cast <to = 1> (i)\n y = Mul(f, s) }",
    w=np.clip(WEIGHTS * 30, -127, 127).astype(np.int8),
)
SIZE = model(
    "(float[n,8] x) => (float[n,8] y, int64[n,8] k) {"
    "s = Shape <start = 0, end = 1> (x)\n f = Cast <to = 1> (s)\n y = Mul(x, f)\n k = Cast <to = 7> (x) }"
)
COLUMNS = model("(float[8,n] x) => (float[8,n] y) { m = ReduceMean <axes = [0]> (x)\n y = Sub(x, m) }")
HIDDEN = model('(float[n,8] x) => (float[n,8] y) { t = Einsum <equation = "ij->j"> (x)\n y = Sub(x, t) }')
RANDOM = model("(float[n,8] x) => (float[n,8] y) { r = RandomNormalLike(x)\n y = Add(x, r) }")
FIXED = model("(float[4,8] x) => (float[4,4] y) { y = MatMul(x, w) }", w=WEIGHTS)
LONG = model("(float[n,k] x) => (float[n,13] y) { o = Constant <value = int64[2] {-1, 13}> ()\n y = Reshape(x, o) }")
FLAT = model("(float[n,8] x) => (float[k] y) { o = Constant <value = int64[1] {-1}> ()\n y = Reshape(x, o) }")


@pytest.mark.parametrize(
    ("path", "batching"),
    [
        (PRODUCT, Batching(2)),
        (PRODUCT, Batching(8, sizes=[8])),
        (FIXED, Batching(4, sizes=[4])),
        (COLUMNS, Batching(4, axis=1)),
    ],
)
def test_independent_rows_pass(path: bytes, batching: Batching) -> None:
    found = check_batching(path, batching)
    assert found.independent
    assert found.outputs["y"].neighbours == 0.0
    assert found.outputs["y"].size < 1e-5
    assert str(found).startswith("joined requests get the answers that they get alone")


BEFORE = "i = Shape <start = 0, end = 1> (x)\n l = Slice(x, last, end, zero)\n f = Slice(x, zero, last, zero)\n"
# Rows that depend on others, beside numbers of another size that would hide it.
HIDING = {
    "the row before, beside masked places": BEFORE + "r = Concat <axis = 0> (l, f)\n y = Concat <axis = 1> (r, m)",
    "the first row, beside pixels": "f = Slice(x, zero, one, zero)\n r = Sub(x, f)\n y = Concat <axis = 1> (r, p)",
    "a first row that is not a number": (
        "f = Slice(x, zero, one, zero)\n n = IsNaN(f)\n c = Cast <to = 1> (n)\n r = Add(x, c)\n"
        "y = Concat <axis = 1> (r, p)"
    ),
}


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("masked", [-1e4, -1e9, np.finfo(np.float32).min])
def test_what_other_rows_change_is_seen_beside_larger_numbers(name: str, masked: float) -> None:
    text = f"z = Sub(x, x)\n m = Add(z, masked)\n s = Sigmoid(x)\n p = Mul(s, pixels)\n{HIDING[name]}"
    places = {"zero": np.array([0]), "one": np.array([1]), "last": np.array([-1]), "end": np.array([2**60])}
    path = model(
        f"(float[n,8] x) => (float[n,16] y) {{ {text} }}",
        masked=np.float32(masked),
        pixels=np.float32(640),
        **places,
    )
    assert not check_batching(path, Batching(8)).independent
    with pytest.raises(InvalidArgument, match="joined requests get other answers"):
        ortmulti.load(path, "cpu", batching=Batching(8, check=True))


def test_larger_numbers_may_round() -> None:
    rows = np.array([[3, -2, 1e9, -1e9], [0.5, 0.25, 1e9, 1e9]], np.float32)
    assert difference(rows, rows + np.array([0, 0, 64, 0], np.float32)) == pytest.approx(64 / 1e9, rel=0.01)
    assert difference(rows, rows + np.array([0.03, 0, 64, 0], np.float32)) == pytest.approx(0.01, rel=0.01)
    assert difference(rows, rows[::-1]) > 0.5
    assert difference(np.array([0.9999, 1e-6], np.float32), np.array([0.9999, 2e-6], np.float32)) < 1e-5  # of a softmax


@pytest.mark.parametrize(("kind", "options"), [("resnet50", {}), ("tiny-kernels", {}), ("matmul", {"megabytes": 4})])
def test_models_of_the_benchmarks_pass(kind: str, options: dict[str, int], tmp_path: Path) -> None:
    assert check_batching(models.make(kind, tmp_path, **options), Batching(2)).independent


@pytest.mark.parametrize(
    ("path", "batching", "why"),
    [
        (MEAN, Batching(4), "beside other requests"),
        (QUANTIZED, Batching(4), "beside other requests"),
        (SIZE, Batching(4), "from the answer to the request alone"),
        (HIDDEN, Batching(4), "beside other requests"),
    ],
)
def test_rows_that_depend_on_others_are_found(path: bytes, batching: Batching, why: str) -> None:
    found = check_batching(path, batching)
    assert not found.independent
    assert re.search(rf"'y' .*differs by \S+ of its largest value {why}", str(found))
    assert "'k'" not in str(found)
    with pytest.raises(InvalidArgument, match="joined requests get other answers"):
        ortmulti.load(path, "cpu", batching=Batching(4, check=True))


def test_a_node_that_mixes_rows_is_named() -> None:
    found = check_batching(QUANTIZED, Batching(4))
    assert found.rows is not None
    assert found.rows.outputs["y"].verdict == "none"
    assert "'y' depends on the other rows: DynamicQuantizeLinear 'q' has one scale for all rows" in str(found)


@pytest.mark.parametrize("sign", ["", "n = Neg(x)\n x0 = Identity(n)\n"])
def test_what_only_large_numbers_of_one_sign_show_is_found(sign: str) -> None:
    """Rows are mixed where all numbers of a row have one sign."""
    value = "n" if sign else "x"
    path = model(
        f"(float[n,8] x) => (float[n,8] y) {{ {sign} l = ReduceMin <axes = [1]> ({value})\n p = Relu(l)\n"
        'g = Sign(p)\n e = Mul(x, g)\n t = Einsum <equation = "ij->j"> (e)\n y = Add(x, t) }'
    )
    assert not check_batching(path, Batching(4)).independent


def test_random_numbers_are_each_rows_own() -> None:
    found = check_batching(RANDOM, Batching(4))
    assert found.independent
    assert found.outputs["y"].repeats > 0.1
    assert "random numbers of RandomNormalLike 'r'" in str(found)


def test_a_difference_is_a_share_of_the_largest_value() -> None:
    ones, twos = np.ones((1, 8), np.float32), np.full((1, 8), 2, np.float32)
    found = check_batching(MEAN, Batching(4), samples=[{"x": ones}, {"x": twos}, {"x": -ones}])
    # Alone 1 - 1; beside 2: 1 - 1.5; beside -1: 1 - 0.
    assert found.outputs["y"] == ortmulti.OutputCheck(neighbours=1.5, size=1.0, repeats=0.0)
    found = check_batching(QUANTIZED, Batching(4), samples=[{"x": twos}, {"x": twos}, {"x": twos}])
    assert found.outputs["y"].independent  # samples that show nothing
    assert not found.independent  # and a graph that does


def test_requests_of_several_rows_and_what_is_not_finite() -> None:
    rows = np.zeros((3, 8), np.float32)
    rows[1, 2], rows[2, 1] = math.nan, math.inf
    other = {"x": np.ones((1, 8), np.float32)}
    assert check_batching(PRODUCT, Batching(4), samples=[{"x": rows}, other]).independent


def test_a_load_that_checks_answers() -> None:
    with ortmulti.load(PRODUCT, "cpu", batching=Batching(4, check=True)) as pool:
        x = np.ones((1, 8), np.float32)
        np.testing.assert_allclose(pool.run({"x": x})[0], x @ WEIGHTS, rtol=1e-5)


def test_an_output_without_rows_is_no_error() -> None:
    found = check_batching(FLAT, Batching(4))
    assert not found.independent
    assert "'y' has the shape (16,) for 2 rows" in str(found)
    found = check_batching(FLAT, Batching(4), samples=[sample(1), sample(2)])
    assert (found.independent, found.outputs) == (False, {})


def sample(rows: int, columns: int = 8, name: str = "x") -> dict[str, np.ndarray]:
    return {name: np.zeros((rows, columns), np.float32)}


@pytest.mark.parametrize(
    ("path", "samples", "message"),
    [
        (LONG, None, "no random inputs run.* Give samples= with yours"),
        (PRODUCT, [sample(1)], "two requests or three, not 1"),
        (PRODUCT, [sample(3), sample(2)], "5 rows together, and max_size is 4"),
        (PRODUCT, [sample(1), sample(1, name="z")], "cannot be joined along dimension 0: 'x'"),
        (PRODUCT, [sample(1), sample(1, 7)], "cannot be joined along dimension 0: all the input"),
        (FIXED, None, r"sizes=\[4\]"),
    ],
)
def test_what_cannot_be_checked_says_why(path: bytes, samples: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_batching(path, Batching(4), samples=samples)


SMALL = ["float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


@pytest.mark.parametrize("name", ["float32", *SMALL])
def test_one_unit_in_the_last_place_is_rounding_for_every_float(name: str) -> None:
    one = np.random.default_rng(0).uniform(1.0, 1.9, (4, 1000)).astype(getattr(ml_dtypes, name, name))
    bits = one.view(f"u{one.itemsize}").copy()
    bits[:, :100] += 1
    found = within_rounding(one, bits.view(one.dtype), 0.0)
    assert 0 < found <= 0.01
    assert ortmulti.OutputCheck(neighbours=0.0, size=found, repeats=0.0).independent
    assert within_rounding(one, -one, 0.0) > 1
    assert within_rounding(one, one[:3], 0.0) == 1.0


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_sums_that_cancel_out_are_rounding_for_every_float(kind: str) -> None:
    """The weights are computed in the run, so that one row takes another kernel than several."""
    w = np.random.default_rng(0).standard_normal((4096, 64)).astype(np.float32)
    v = w + np.float32(0.01) * np.random.default_rng(1).standard_normal(w.shape).astype(np.float32)
    path = model(
        f"(float[n,k] x) => ({kind}[n,64] y) {{"
        "s = Shape <start = 1> (x)\n f = Cast <to = 1> (s)\n g = Div(f, many)\n a = Mul(w, g)\n b = Mul(v, g)\n"
        f"c = MatMul(x, a)\n d = MatMul(x, b)\n e = Sub(c, d)\n y = Cast <to = {16 if kind[0] == 'b' else 10}> (e) }}",
        w=w,
        v=v,
        many=np.float32(4096),
    )
    samples = [{"x": np.random.default_rng(seed).standard_normal((1, 4096)).astype(np.float32)} for seed in range(2)]
    assert check_batching(path, Batching(8), samples=samples).independent


@pytest.mark.parametrize(("element", "kind"), [(16, "bfloat16"), (17, "float8e4m3fn"), (19, "float8e5m2")])
def test_small_floats_are_numbers(element: int, kind: str) -> None:
    same = model(
        f"({kind}[n,8] x) => ({kind}[n,8] y) {{ f = Cast <to = 1> (x)\n y = Cast <to = {element}> (f) }}", opset=19
    )
    assert check_batching(same, Batching(4)).independent
    mixed = model(
        f"({kind}[n,8] x) => ({kind}[n,8] y) {{ f = Cast <to = 1> (x)\n m = ReduceMean(f, first)\n"
        f"d = Sub(f, m)\n y = Cast <to = {element}> (d) }}",
        opset=19,
        first=np.array([0]),
    )
    assert re.search(r"'y' .*differs by \S+ of its largest value beside", str(check_batching(mixed, Batching(4))))


def test_wrong_arguments() -> None:
    with pytest.raises(ortmulti.errors.InvalidType, match=r"ortmulti\.Batching"):
        check_batching(PRODUCT, 8)
    with pytest.raises(ortmulti.errors.InvalidType, match="check is True or False"):
        Batching(4, check=1)
