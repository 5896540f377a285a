"""`ortmulti.text.fuse`: an export becomes another one, whose model pools by itself, and is compared with the first."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortmulti as om
from ortmulti.cache.entries import Cache
from ortmulti.errors import InvalidArgument, NotOptimizable
from ortmulti.optimized import fusion_proof
from ortmulti.serve.folder import Models
from ortmulti.text.fusing import fused_settings
from ortmulti.text.pooling import add_pooling
from tests.support import command, encoders, exports, onnx_models
from tests.support.encoders import Encoder

POOLINGS: dict[str, Callable[[Any], Any]] = {
    "cls": lambda tokens: tokens[0],
    "mean": lambda tokens: tokens.mean(0),
    "last": lambda tokens: tokens[-1],
    "max": lambda tokens: tokens.max(0),
    "mean_sqrt_len": lambda tokens: tokens.sum(0) / np.sqrt(len(tokens)),
    "weightedmean": lambda tokens: np.average(tokens, axis=0, weights=np.arange(1, len(tokens) + 1)),
}
TEXTS = ["A cat.", "the rows of a batch are independent", "a cat sits on the mat, and looks at it"]


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_proof, "race", lambda *_, **__: (om.FusedRun(1, 32, 32, 2.0, 1.0, 0.6),))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_model_pools_as_the_library_does(pooling: Any, half: bool) -> None:
    model = Encoder("eager", "added").proto()
    with onnx_models.cpu_session(model.SerializeToString()) as session:
        ids = np.random.default_rng(0).integers(60, size=(3, 9))
        mask = np.array([[1] * 9, [1] * 4 + [0] * 5, [0] * 7 + [1] * 2])
        add_pooling(model, "last_hidden_state", pooling, "sentence_embedding")
        if half:
            from ortmulti.optimized.fuse import _halved

            model = _halved(model)
        with onnx_models.cpu_session(model.SerializeToString()) as other:
            [found] = other.run(None, {"input_ids": ids, "attention_mask": mask})
        [tokens] = session.run(None, {"input_ids": ids, "attention_mask": mask})
        for row, real, vector in zip(tokens, mask, found, strict=True):
            assert np.allclose(POOLINGS[pooling](row[real > 0]), vector, atol=2e-2 if half else 1e-6)


def export(folder: Path, **others: Any) -> Path:
    """An encoder whose vocabulary is that of a trained tokenizer."""
    (folder / "onnx").mkdir(parents=True)
    exports.trained(TEXTS, encoders.TOKENS).save(str(folder / "tokenizer.json"))
    encoders.write(folder / "onnx" / "model.onnx", **others)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 130, "architectures": ["BertModel"]}))
    (folder / "modules.json").write_text(json.dumps(exports.modules("Pooling", "Normalize")))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    return folder


@pytest.mark.usefixtures("faster")
def test_another_export_with_the_same_vectors(tmp_path: Path) -> None:
    folder = export(tmp_path / "model")
    (folder / "weights.safetensors").touch()
    made = om.text.fuse(folder, tmp_path / "fused", "cpu")
    assert (made.path, made.fused["Attention"]) == (str(tmp_path / "fused"), 2)
    files = {str(path.relative_to(tmp_path / "fused")) for path in (tmp_path / "fused").rglob("*") if path.is_file()}
    assert files == {"onnx/model.onnx", "tokenizer.json", "config.json", "modules.json", "1_Pooling/config.json"}
    settings = om.text.read_settings(tmp_path / "fused")
    assert (settings.output, settings.pooling, settings.normalize, settings.packed) == (
        "sentence_embedding",
        None,
        True,
        False,
    )
    with om.text.load(folder, "cpu") as one, om.text.load(tmp_path / "fused", "cpu") as other:
        assert np.allclose(one.embed(TEXTS), other.embed(TEXTS), atol=1e-4)


@pytest.mark.usefixtures("faster")
def test_another_pooling_is_kept(tmp_path: Path) -> None:
    folder = export(tmp_path / "model")
    om.text.fuse(folder, tmp_path / "fused", "cpu", pooling="mean")
    with om.text.load(folder, "cpu", pooling="mean") as one, om.text.load(tmp_path / "fused", "cpu") as other:
        assert np.allclose(one.embed(TEXTS), other.embed(TEXTS), atol=1e-4)


@pytest.mark.usefixtures("faster")
def test_a_prompt_that_is_not_pooled_is_left_to_the_library(tmp_path: Path) -> None:
    folder = export(tmp_path / "model")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean", "include_prompt": False}))
    om.text.fuse(folder, tmp_path / "fused", "cpu")
    with om.text.load(folder, "cpu") as one, om.text.load(tmp_path / "fused", "cpu") as other:
        expected, found = (model.embed(TEXTS, prompt="the rows ") for model in (one, other))
    assert np.allclose(expected, found, atol=1e-4)


@pytest.mark.usefixtures("faster")
def test_layers_and_joined_poolings_are_left_to_the_library(tmp_path: Path) -> None:
    folder = export(tmp_path / "model")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": ["cls", "mean"]}))
    with om.text.load(folder, "cpu") as one:
        expected = one.embed(TEXTS)
    om.text.fuse(folder, tmp_path / "fused", "cpu")
    with om.text.load(tmp_path / "fused", "cpu") as other:
        assert np.allclose(expected, other.embed(TEXTS), atol=1e-4)
    (folder / "modules.json").write_text(json.dumps(exports.modules("Pooling", "Dense", "Normalize")))
    (folder / "2_Dense").mkdir()
    weights = np.random.default_rng(0).standard_normal((5, expected.shape[1])).astype(np.float32)
    layer = {"in_features": expected.shape[1], "out_features": 5, "bias": False}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(layer))
    (folder / "2_Dense" / "model.safetensors").write_bytes(exports.safetensors(linear_weight=weights))
    om.text.fuse(folder, tmp_path / "layers", "cpu")
    with om.text.load(folder, "cpu") as one, om.text.load(tmp_path / "layers", "cpu") as other:
        assert other.dimensions == 5
        assert np.allclose(one.embed(TEXTS), other.embed(TEXTS), atol=1e-4)
    with pytest.raises(InvalidArgument, match="pooling='mean' cannot be kept, since the model does not pool by itself"):
        om.text.fuse(folder, tmp_path / "other", "cpu", pooling="mean")


def test_a_model_without_padding_is_seen(tmp_path: Path) -> None:
    folder = export(tmp_path / "model")
    model = onnx.load(folder / "onnx" / "model.onnx")
    model.graph.node.append(
        onnx.helper.make_node("RemovePadding", ["a", "b"], ["c", "d", "e", "f"], domain="com.microsoft")
    )
    onnx.save(model, folder / "onnx" / "model.onnx")
    assert not om.text.read_settings(folder).packed
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float16), "half"))
    onnx.save(model, folder / "onnx" / "model.onnx")
    assert om.text.read_settings(folder).packed


def test_nothing_is_kept_of_what_is_not_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_proof, "FASTER", 0.0)
    monkeypatch.setattr(fusion_proof, "_SECONDS", 0.0)
    with pytest.raises(NotOptimizable, match="no fused model is kept"):
        om.text.fuse(export(tmp_path / "model"), tmp_path / "fused", "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.usefixtures("faster")
def test_the_command_and_what_is_there_already(tmp_path: Path) -> None:
    folder = export(tmp_path / "model")
    shown = command.invoke("fuse", folder, tmp_path / "fused", "--device", "cpu", "--precision", "fp16")
    assert (shown.returncode, "2 Attention" in shown.stdout) == (0, True)
    before = sorted((tmp_path / "fused").rglob("*"))
    with pytest.raises(InvalidArgument, match="fused' is there already"):
        om.text.fuse(folder, tmp_path / "fused", "cpu")
    assert sorted((tmp_path / "fused").rglob("*")) == before


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORTMULTI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("faster")
def test_a_load_makes_the_faster_form_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = export(tmp_path / "model")
    with om.text.load(folder, "cpu") as model:
        expected = model.embed(TEXTS)
    with om.text.load(folder, "cpu", fuse="fp32") as model:
        assert (model.settings.name, model.settings.output) == ("model", "sentence_embedding")
        assert np.allclose(model.embed(TEXTS), expected, atol=1e-4)
    [place] = (cache / "folders").iterdir()
    assert not list((cache / "staging").iterdir())
    [file] = place.rglob("*.onnx")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with om.text.load(folder, "cpu", fuse="fp32") as model:
        assert model.settings.output == "sentence_embedding"
    assert file.stat().st_size == len(whole)
    monkeypatch.setattr("ortmulti.text.fusing._fuse", None)
    with om.text.load(folder, "cpu", fuse="fp32", max_length=5) as model:
        assert place in model.settings.model.parents
        assert model.settings.max_length == 5
    cleared = Cache(cache).clear()
    assert cleared.entries >= 1
    assert not (cache / "folders").exists()


@pytest.mark.usefixtures("faster")
def test_forms_count_in_the_cache_and_those_used_least_go_first(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def form(**given: Any) -> Path:
        settings = fused_settings(folder, "fp32", "cpu", **given)
        [place] = {*settings.model.parents} & {*(cache / "folders").iterdir()}
        return place

    folder = export(tmp_path / "model")
    first, second = form(), form(pooling="max")
    os.utime(first / "used.txt", (1, 1))
    os.utime(second / "used.txt", (2, 2))
    stored = {each.folder: each for each in Cache(cache).entries()}
    model = str(om.text.read_settings(folder).model)
    assert (stored[first].model, stored[first].last_used) == (model, 1)
    assert stored[first].bytes == sum(path.stat().st_size for path in first.rglob("*") if path.is_file())
    assert {stored[first].facts["form"], stored[second].facts["form"]} == {"fp32-cls", "fp32-max"}  # type: ignore[index]
    listed = json.loads(command.invoke("optimize", "--list", "--json").stdout)
    assert listed["bytes"] == sum(each.bytes for each in stored.values())
    assert "fused, fp32-max" in command.invoke("optimize", "--list").stdout
    assert form() == first  # now used last
    monkeypatch.setenv("ORTMULTI_CACHE_SIZE", str(int(2.5 * stored[first].bytes)))
    third = form(pooling="mean")
    assert (first.exists(), second.exists(), third.exists()) == (True, False, True)


@pytest.mark.usefixtures("faster")
def test_a_form_is_used_where_the_cache_cannot_be_written(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export(tmp_path / "model")
    made = fused_settings(folder, "fp32", "cpu")

    def full(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", full)
    assert fused_settings(folder, "fp32", "cpu").model == made.model
    assert cache in made.model.parents


@pytest.mark.usefixtures("faster", "cache")
def test_another_export_of_the_same_model_has_its_own_files(tmp_path: Path) -> None:
    one, other = export(tmp_path / "one"), export(tmp_path / "other")
    named = {"prompts": {"query": "the rows "}, "default_prompt_name": "query"}
    (other / "config_sentence_transformers.json").write_text(json.dumps(named))
    for folder in (one, other):
        for pooling in (None, ("cls", "mean"), "max"):
            with om.text.load(folder, "cpu", pooling=pooling) as model:
                expected = model.embed(TEXTS)
            with om.text.load(folder, "cpu", pooling=pooling, fuse="fp32") as model:
                assert np.allclose(model.embed(TEXTS), expected, atol=1e-4)


def test_what_is_not_faster_is_remembered(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fusion_proof, "FASTER", 0.0)
    monkeypatch.setattr(fusion_proof, "_SECONDS", 0.0)
    folder = export(tmp_path / "model")
    settings = om.text.read_settings(folder)
    for made in (1, 2):
        assert fused_settings(folder, "fp32", "cpu") == settings
        assert caplog.text.count("stays as it is: no fused model is kept") == made
        monkeypatch.setattr("ortmulti.text.fusing._fuse", None)
    (cache / "folders").chmod(0o777)
    assert fused_settings(folder, "fp32", "cpu") == settings
    with pytest.raises(InvalidArgument, match="fuse is 'fp32' or 'fp16'"):
        om.text.load(folder, "cpu", fuse="int8")


def test_a_load_goes_on_where_the_cache_is_full(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise om.Error("the fused model cannot be written") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ortmulti.text.fusing.fuse_prepared", full)
    folder = export(tmp_path / "model")
    assert fused_settings(folder, "fp32", "cpu") == om.text.read_settings(folder)
    assert f"in {cache} is not used: it cannot be written: No space left on device" in caplog.text
    assert not list((cache / "staging").iterdir())


@pytest.mark.usefixtures("faster", "cache")
def test_a_server_is_told_by_its_file(tmp_path: Path) -> None:
    export(tmp_path / "model")
    (tmp_path / "server.toml").write_text('[models.m]\npath = "model"\nfuse = "fp16"\n')
    models = Models([tmp_path / "server.toml"])
    models.devices = "cpu"
    found = models.find("m")
    assert found.texts is not None
    assert (found.texts.output, tmp_path / "cache" in found.texts.model.parents) == ("sentence_embedding", True)
