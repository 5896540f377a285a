"""Loading models of texts."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortmulti
from ortmulti import text
from tests.support import exports
from tests.support.exports import CLOSE, TEXTS, WIDTH
from tests.support.processes import check_child


def test_a_model_whose_padding_reaches_its_answers_runs_texts_of_one_length_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exports.export(tmp_path, inputs=("input_ids",))
    wanted = [exports.vectors_of(tmp_path, one).mean(0) for one in TEXTS]
    with caplog.at_level(logging.WARNING, "ortmulti"), text.load(tmp_path, "cpu") as model:
        np.testing.assert_allclose(model.embed(TEXTS * 3), wanted * 3, **CLOSE)
    [record] = [one for one in caplog.records if "model.onnx" in one.getMessage()]
    assert "only texts of one length run together" in record.getMessage()
    assert "padded, joined requests get other answers: 'last_hidden_state' differs by" in record.getMessage()
    assert "Give pad" not in record.getMessage()  # which is for pools


def test_texts_of_a_quantized_model_run_alone_and_one_line_says_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exports.export(tmp_path)
    proto = onnx.load(tmp_path / "model.onnx")
    [add] = [one for one in proto.graph.node if one.output[0] == "tokens"]
    add.output[0] = "plain"
    graph = """<ir_version: 8, opset_import: ["": 17]> g (float[b, n, 6] plain) => (float[b, n, 6] tokens) {
        small, scale, zero = DynamicQuantizeLinear (plain)
        tokens = DequantizeLinear (small, scale, zero)
    }"""
    place = list(proto.graph.node).index(add)
    for number, one in enumerate(onnx.parser.parse_model(graph).graph.node, 1):
        proto.graph.node.insert(place + number, one)
    onnx.save(proto, tmp_path / "model.onnx")
    assert text.read_settings(tmp_path).quantizes
    with caplog.at_level(logging.WARNING, "ortmulti"), text.load(tmp_path, "cpu") as model:
        [record] = caplog.records
        assert "texts run alone: the model is quantized, with one scale" in record.getMessage()
        found = model.embed(TEXTS)
        np.testing.assert_array_equal(found, [model.embed([one])[0] for one in TEXTS])
        assert model.pool.stats().devices[0].runs == model.pool.stats().devices[0].done


def test_options_of_a_load(folder: Path) -> None:
    settings = text.read_settings(folder)
    first, *others = text.load_options(settings, max_queue=3)
    assert first["batching"].pad == {"input_ids": 0, "attention_mask": 0}
    assert (first["batching"].mask, first["batching"].max_tokens, first["max_queue"]) == ("attention_mask", 16384, 3)
    assert [one["batching"] for one in others] == [ortmulti.Batching(32), None]
    given = ortmulti.Batching(4)
    assert text.load_options(settings, batching=given, warmup=False) == [{"batching": given, "warmup": False}]
    with text.load(folder, "cpu", batching=given, max_queue=5) as model:
        assert model.embed(["a cat"]).shape == (1, WIDTH)
    with pytest.raises(ortmulti.InvalidArgument, match="sessions_per_devices"):
        text.load(folder, "cpu", sessions_per_devices=2)
    with pytest.raises(ortmulti.InvalidArgument, match="gpu9"):
        text.load(folder, "gpu9")


def test_a_fixed_length_is_refused(tmp_path: Path) -> None:
    exports.export(tmp_path)
    proto = onnx.load(tmp_path / "model.onnx")
    for one in proto.graph.input:
        one.type.tensor_type.shape.dim[1].dim_value = 16
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(ortmulti.InvalidArgument, match=r"the model's input 'input_ids' has the fixed length 16"):
        text.load(tmp_path, "cpu")


def test_left_padding_is_tried_first_and_then_right(tmp_path: Path) -> None:
    config = {"padding_side": "left", "pad_token": "[SEP]", "added_tokens_decoder": {"3": {"content": "[SEP]"}}}
    exports.export(tmp_path, files={"tokenizer_config.json": config})
    ways = [one["batching"] for one in text.load_options(text.read_settings(tmp_path))[:2]]
    assert [one.pad_side for one in ways] == ["left", "right"]
    assert [one.pad for one in ways] == [{"input_ids": 3, "attention_mask": 0}] * 2
    wanted = [exports.vectors_of(tmp_path, one)[-1] for one in TEXTS]
    with text.load(tmp_path, "cpu", pooling="last") as model:
        np.testing.assert_allclose(model.embed(TEXTS * 8), wanted * 8, **CLOSE)


def test_a_repositorys_model(folder: Path, expected: np.ndarray) -> None:
    settings = text.read_settings(folder)
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("texts", settings.model, **text.load_options(settings)[0])
        with text.TextModel(repository["texts"], settings, closes=False) as model:
            np.testing.assert_allclose(asyncio.run(model.embed_async(TEXTS)), expected, **CLOSE)
            np.testing.assert_allclose(model.embed(TEXTS), expected, **CLOSE)
        assert repository["texts"].ready


def test_closing(folder: Path) -> None:
    with text.load(folder, "cpu") as model:
        asyncio.run(model.embed_async(["a cat " * 400]))
        assert "TextModel 'encoder' for embedding" in repr(model)
    assert model.pool.closed
    with pytest.raises(ortmulti.ClosedError):
        model.embed(["a"])

    async def main() -> None:
        async with text.load(folder, "cpu") as other:
            assert len(await other.embed_async(["a", "b"])) == 2
        assert other.pool.closed

    asyncio.run(main())


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    exports.export(tmp_path, files={"tokenizer.json": "{}"})
    with pytest.raises(ortmulti.InvalidArgument, match=r"tokenizer.json is no tokenizer: "):
        text.load(tmp_path, "cpu")


@pytest.mark.parametrize(
    ("part", "value", "when"),
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "load"),
        (
            "post_processor",
            {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            },
            "call",
        ),
    ],
)
def test_a_panic_of_the_package_is_an_error(tmp_path: Path, part: str, value: Any, when: str) -> None:
    """It is no `Exception`."""
    folder = exports.export(tmp_path)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {part: value}), "utf-8")
    if when == "load":
        with pytest.raises(ortmulti.InvalidArgument, match=r"tokenizer.json is no tokenizer: "):
            text.load(folder, "cpu")
        return
    with text.load(folder, "cpu", warmup=False) as model:
        for call in (model.embed, lambda texts: asyncio.run(model.embed_async(texts)), model.count_tokens):
            with pytest.raises(ortmulti.InvalidArgument, match="the tokenizer does not take these texts: "):
                call(["a cat"])


def test_a_tokenizer_that_fails_and_one_without_room(tmp_path: Path) -> None:
    exports.export(tmp_path)
    with pytest.raises(ortmulti.InvalidArgument, match=r"max_length is 2, and .*tokenizer.json adds 2 special tokens"):
        text.load(tmp_path, "cpu", max_length=2)
    with text.load(tmp_path, "cpu", max_length=4) as model:
        counts: list[int] = []
        model.embed(["the rows of a batch"], counts=counts)
        assert counts == [4]
    written = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    written["model"]["unk_token"] = "[NONE]"
    (tmp_path / "tokenizer.json").write_text(json.dumps(written), "utf-8")
    message = "the tokenizer does not take these texts: WordPiece error"
    with text.load(tmp_path, "cpu") as model, pytest.raises(ortmulti.InvalidArgument, match=message):
        model.embed(["a", "\u2603"])


def test_without_tokenizers_the_error_says_what_to_install(folder: Path) -> None:
    code = f"""
import sys
sys.modules["tokenizers"] = None
import ortmulti
try:
    ortmulti.text.load({str(folder)!r}, "cpu")
except ortmulti.LibraryError as error:
    print(error)
"""
    assert 'pip install "ortmulti[text]"' in check_child(code)
    assert "ortmulti.text" in sys.modules
