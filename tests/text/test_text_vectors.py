"""What is made of a model's outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ortmulti
from ortmulti.text.vectors import activated, pooled, shortened

TOKENS = np.array([[[1, 8], [3, 4], [5, 0]]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "expected", "behind_the_first"),
    [
        ("cls", [1, 8], [3, 4]),
        ("last", [5, 0], [5, 0]),
        ("max", [5, 8], [5, 4]),
        ("mean", [3, 4], [4, 2]),
        ("mean_sqrt_len", [9 / 3**0.5, 12 / 3**0.5], [8 / 2**0.5, 4 / 2**0.5]),
        ("weightedmean", [22 / 6, 16 / 6], [21 / 5, 8 / 5]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_pooling(pooling: Any, expected: list[float], behind_the_first: list[float], dtype: Any) -> None:
    for skip, wanted in ((0, expected), (1, behind_the_first), (9, [5, 0])):
        found = pooled(TOKENS.astype(dtype), pooling, skip)
        assert found.dtype == np.float32
        last = pooling == "mean_sqrt_len" and skip == 9
        np.testing.assert_allclose(found, wanted if not last else [5, 0], rtol=1e-6)


def test_what_is_one_vector_already_is_not_pooled() -> None:
    np.testing.assert_array_equal(pooled(TOKENS[:, 0], "mean"), [1, 8])
    np.testing.assert_array_equal(pooled(TOKENS[0, 0], None), [1, 8])
    for output, pooling in ((TOKENS, None), (TOKENS[None], "mean"), (np.concatenate([TOKENS, TOKENS]), "mean")):
        with pytest.raises(ortmulti.InvalidArgument, match=r"has the shape \(.*\) for one text"):
            pooled(output, pooling)


def test_several_poolings_are_joined_in_their_order() -> None:
    np.testing.assert_array_equal(pooled(TOKENS, ("max", "cls")), [5, 8, 1, 8])
    np.testing.assert_array_equal(pooled(TOKENS, ("mean", "last"), 1), [4, 2, 5, 0])
    np.testing.assert_array_equal(pooled(TOKENS[:, 0], ("max", "cls")), [1, 8])


def test_a_sum_of_half_precision_does_not_overflow() -> None:
    np.testing.assert_array_equal(pooled(np.full((1, 400, 2), 1000, np.float16), "mean"), [1000, 1000])


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
