"""What is made of a model's outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ortmulti
from ortmulti import _core
from ortmulti.pool.tokens import TokenRuns, Tokens
from ortmulti.text.vectors import activated, shortened
from tests.support import onnx_models

TOKENS = np.array([[1, 8], [3, 4], [5, 0]], np.float32)
TYPES = {np.float32: "float", np.float16: "float16", np.float64: "double", ml_dtypes.bfloat16: "bfloat16"}


def pooled(
    table: Any, pooling: Any, skip: int = 0, nodes: str = "y = Gather (table, input_ids)", shape: str = "1, n, 2"
) -> Any:
    """The row of a text of all of the table's tokens."""
    made = f"(int64[1, n] input_ids) => ({TYPES[table.dtype.type]}[{shape}] y) {{ {nodes} }}"
    model = onnx_models.with_weights(made, table=table, two=[2], first=np.array(0))
    with ortmulti.load(model, "cpu", warmup=False) as pool:
        core = _core.TokenModel([("input_ids", 7)], "y", [pooling] if isinstance(pooling, str) else pooling)
        return TokenRuns(pool, core).run(Tokens([*range(len(table))]), skip)


@pytest.mark.parametrize(
    ("pooling", "expected", "behind_the_first"),
    [
        ("cls", [1, 8], [3, 4]),
        ("last", [5, 0], [5, 0]),
        ("max", [5, 8], [5, 4]),
        ("mean", [3, 4], [4, 2]),
        ("mean_sqrt_len", [9 / 3**0.5, 12 / 3**0.5], [8 / 2**0.5, 4 / 2**0.5]),
        ("weightedmean", [22 / 6, 16 / 6], [21 / 5, 8 / 5]),
        (["cls", "mean"], [1, 8, 3, 4], [3, 4, 4, 2]),
    ],
)
@pytest.mark.parametrize("dtype", list(TYPES))
def test_pooling(pooling: Any, expected: list[float], behind_the_first: list[float], dtype: Any) -> None:
    last = [5, 0] * (len(expected) // 2)
    for skip, wanted in ((0, expected), (1, behind_the_first), (9, last)):
        found = pooled(TOKENS.astype(dtype), pooling, skip)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, [wanted], rtol=1e-6)


def test_many_dimensions_are_pooled() -> None:
    table = np.random.default_rng(0).standard_normal((50, 77)).astype(np.float32)
    np.testing.assert_allclose(pooled(table, "mean", 3, shape="1, n, 77")[0], table[3:].mean(0), rtol=1e-5, atol=1e-6)


def test_what_is_one_vector_already_is_not_pooled() -> None:
    one = "all = Gather (table, input_ids) y = Gather <axis = 1> (all, first)"
    np.testing.assert_array_equal(pooled(TOKENS, "mean", nodes=one, shape="1, 2"), [[1, 8]])
    wide = "all = Gather (table, input_ids) y = Unsqueeze (all, two)"
    for pooling, nodes, shape in (([], "y = Gather (table, input_ids)", "1, n, 2"), ("mean", wide, "1, n, 1, 2")):
        with pytest.raises(ortmulti.InvalidArgument, match=r"has the shape \(1, 3, .*\) for one text"):
            pooled(TOKENS, pooling, nodes=nodes, shape=shape)


def test_several_poolings_are_joined_in_their_order() -> None:
    np.testing.assert_array_equal(pooled(TOKENS, ("max", "cls")), [[5, 8, 1, 8]])
    np.testing.assert_array_equal(pooled(TOKENS, ("mean", "last"), 1), [[4, 2, 5, 0]])


def test_a_sum_of_half_precision_does_not_overflow() -> None:
    np.testing.assert_array_equal(pooled(np.full((400, 2), 1000, np.float16), "mean"), [[1000, 1000]])


def test_vectors_are_cut_before_they_are_normalized() -> None:
    vectors = np.array([[3, 4, 12], [0, 0, 0]], np.float32)
    np.testing.assert_allclose(shortened(vectors, None, True), [[3 / 13, 4 / 13, 12 / 13], [0, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(shortened(vectors, 2, True), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(shortened(vectors[0], 2, True), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(shortened(vectors, 2, False), vectors[:, :2])
    with pytest.raises(ortmulti.InvalidArgument, match="dimensions is 1 to 3, not 4"):
        shortened(vectors, 4, False)


def test_scores() -> None:
    logits = np.array([[0, 1000], [-1000, 0]], np.float32)
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_allclose(activated(logits, "sigmoid"), [[0.5, 1], [0, 0.5]])
        np.testing.assert_allclose(activated(logits, "softmax"), [[0, 1], [0, 1]])
    np.testing.assert_array_equal(activated(logits, "none"), logits)
    np.testing.assert_array_equal(activated(logits, "tanh"), [[0, 1], [-1, 0]])
    np.testing.assert_array_equal(activated(logits, "relu"), [[0, 1000], [0, 0]])
    with pytest.raises(ortmulti.InvalidArgument, match="the activation GELU, which is not computed here: take the"):
        activated(logits, "GELU")
    found = activated(np.array([[1, 2]], np.float32), "softmax")
    np.testing.assert_allclose(found, [[1 / (1 + np.e), np.e / (1 + np.e)]], rtol=1e-6)
    np.testing.assert_allclose(activated(np.array([[2]], np.float32), "sigmoid"), [[1 / (1 + np.exp(-2))]], rtol=1e-6)
