"""Linear layers behind the pooling, whose weights lie beside the model, and scores of activations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ortmulti
from ortmulti import text
from tests.support import exports
from tests.support.exports import CLOSE, TEXTS, WIDTH

POOLING, DENSE, WEIGHTS = "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"
OUT = 3
MATRIX = np.random.default_rng(3).standard_normal((OUT, WIDTH)).astype(np.float32)
BIAS = np.arange(OUT, dtype=np.float32)
CONFIG = {"in_features": WIDTH, "out_features": OUT, "bias": True}


def export(folder: Path, config: dict[str, Any] | None = None, weights: bytes | None = None, *kinds: str) -> Path:
    files = {
        "modules.json": exports.modules(*(kinds or ("Pooling", "Dense", "Normalize"))),
        POOLING: {},
        DENSE: {**CONFIG, **(config or {})},
    }
    exports.export(folder, files=files)
    content = exports.safetensors(linear_weight=MATRIX, linear_bias=BIAS) if weights is None else weights
    (folder / WEIGHTS).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("activation", "of"),
    [
        ("torch.nn.modules.activation.Tanh", np.tanh),
        ("torch.nn.modules.linear.Identity", lambda values: values),
        (None, np.tanh),  # the class's default
    ],
)
def test_a_layer_that_the_model_lacks_is_computed(tmp_path: Path, activation: str | None, of: Any) -> None:
    export(tmp_path, {"activation_function": activation})
    plain = np.array([exports.vectors_of(tmp_path, one).mean(0) for one in TEXTS])
    wanted = of(plain @ MATRIX.T + BIAS)
    with text.load(tmp_path, "cpu") as model:
        assert model.dimensions == OUT
        np.testing.assert_allclose(model.embed(TEXTS, normalize=False), wanted, **CLOSE)
        normal = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
        np.testing.assert_allclose(model.embed(TEXTS), normal, **CLOSE)
        np.testing.assert_allclose(list(model.embed_stream(TEXTS)), normal, **CLOSE)
        assert model.embed([]).shape == (0, OUT)
        with pytest.raises(ortmulti.InvalidArgument, match="dimensions is 1 to 3, not 4"):
            model.embed(TEXTS, dimensions=4)
        assert f"a layer to {OUT}" in str(model.settings)
        json.dumps(model.settings.facts())


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_weights_of_any_floating_type(tmp_path: Path, dtype: Any) -> None:
    weights = exports.safetensors(linear_weight=MATRIX.astype(dtype))
    export(tmp_path, {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}, weights)
    plain = exports.vectors_of(tmp_path, TEXTS[1]).mean(0)
    with text.load(tmp_path, "cpu", normalize=False) as model:
        np.testing.assert_allclose(model.embed(TEXTS[1:2])[0], MATRIX.astype(dtype).astype(np.float32) @ plain, **CLOSE)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.GELU"}, "with the activation GELU, which"),
        ({"activation_function": "mine.Tanh"}, "with the activation mine.Tanh, which"),
        ({"module_input_name": "token_embeddings"}, "which is not for a text's vector"),
        ({"in_features": None}, "'in_features' is a number of 1 or more, not None"),
        ({"out_features": 0}, "'out_features' is a number of 1 or more, not 0"),
    ],
)
def test_a_layer_that_is_not_computed_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=message):
        text.read_settings(export(tmp_path, config))


def test_a_layer_behind_the_length_1_is_refused(tmp_path: Path) -> None:
    export(tmp_path, None, None, "Pooling", "Normalize", "Dense")
    (tmp_path / "2_Dense").rename(tmp_path / "3_Dense")
    with pytest.raises(ortmulti.InvalidArgument, match="module Dense in '3_Dense' behind Normalize"):
        text.read_settings(tmp_path)


_TOLD = {"dtype": "F32", "shape": [OUT, WIDTH], "data_offsets": [0, 4 * OUT * WIDTH]}


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"\0" * 7,
        (1 << 62).to_bytes(8, "little"),
        exports.safetensors_of(b"{"),
        exports.safetensors_of(b"[" * 100_000),
        exports.safetensors_of(b"[]"),
        exports.safetensors_of(b"{}"),
        exports.safetensors_of(b'{"linear.weight": 3}'),
        exports.safetensors_of(json.dumps({"linear.weight": _TOLD}).encode()),
        *(
            exports.safetensors_of(json.dumps({"linear.weight": {**_TOLD, **wrong}}).encode(), bytes(4 * OUT * WIDTH))
            for wrong in (
                {"dtype": "I8"},
                {"shape": [WIDTH, OUT]},
                {"data_offsets": [0, 3]},
                {"data_offsets": [-4, 4 * OUT * WIDTH - 4]},
                {"data_offsets": [0.0, 4 * OUT * WIDTH]},
                {"data_offsets": "ab"},
                {"data_offsets": [1 << 70, (1 << 70) + 4 * OUT * WIDTH]},
            )
        ),
    ],
)
def test_weights_that_are_none_are_one_clear_error(tmp_path: Path, weights: bytes) -> None:
    export(tmp_path, {"bias": False}, weights)
    with pytest.raises(ortmulti.InvalidArgument, match=r"model.safetensors' does not have the tensors .*get it again"):
        text.load(tmp_path, "cpu")


def test_weights_that_are_missing(tmp_path: Path) -> None:
    (export(tmp_path) / WEIGHTS).unlink()
    with pytest.raises(ortmulti.NoSuchFile, match=r"no file '.*2_Dense/model.safetensors', with the weights of a"):
        text.read_settings(tmp_path)
    os.mkfifo(tmp_path / WEIGHTS)
    with pytest.raises(ortmulti.NoSuchFile, match=r"no file '.*2_Dense/model.safetensors', with the weights of a"):
        text.read_settings(tmp_path)


def test_a_layer_for_other_vectors(tmp_path: Path) -> None:
    wide = np.zeros((OUT, 2 * WIDTH), np.float32)
    export(tmp_path, {"bias": False, "in_features": 2 * WIDTH}, exports.safetensors(linear_weight=wide))
    with text.load(tmp_path, "cpu") as model, pytest.raises(ortmulti.InvalidArgument, match="takes 12 elements, not 6"):
        model.embed(["a"])


def test_several_poolings_have_one_layer(tmp_path: Path) -> None:
    wide = np.random.default_rng(4).standard_normal((OUT, 2 * WIDTH)).astype(np.float32)
    export(
        tmp_path, {"bias": False, "in_features": 2 * WIDTH}, exports.safetensors(linear_weight=wide), "Pooling", "Dense"
    )
    found = exports.vectors_of(tmp_path, TEXTS[1])
    both = np.concatenate([found[0], found.mean(0)])
    with text.load(tmp_path, "cpu", pooling=("cls", "mean")) as model:
        np.testing.assert_allclose(model.embed(TEXTS[1:2])[0], np.tanh(wide @ both), **CLOSE)
        assert "cls+mean of the tokens, a layer to 3" in str(model.settings)


def test_scores_of_another_activation_are_refused_and_logits_are_not(tmp_path: Path) -> None:
    config = {
        "architectures": ["BertForSequenceClassification"],
        "num_labels": 1,
        "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.GELU"},
    }
    exports.export(tmp_path, "logits", files={"config.json": config})
    with text.load(tmp_path, "cpu") as model:
        wanted = exports.logits_of(tmp_path, "a", "b")
        np.testing.assert_allclose(model.rank("a", ["b"], raw_scores=True), wanted, **CLOSE)
        with pytest.raises(ortmulti.InvalidArgument, match="activation GELU, which is not computed here: take the log"):
            model.rank("a", ["b"])
