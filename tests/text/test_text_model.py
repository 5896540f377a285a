"""Models of texts: vectors, scores and classes are those that each text gets alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import text
from tests.support import exports, onnx_models
from tests.support.exports import CLOSE, TEXTS, WIDTH


def normal(vectors: Any) -> np.ndarray:
    made: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return made


# --- Embeddings -------------------------------------------------------------------------------------------------------


def test_each_text_gets_its_vector(encoder: text.TextModel, expected: np.ndarray) -> None:
    counts: list[int] = []
    found = encoder.embed(TEXTS, counts=counts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert counts == [len(exports.tokens(encoder.settings.folder, one).ids) for one in TEXTS]
    assert counts[2] == 256  # it is cut
    np.testing.assert_allclose(encoder.embed([TEXTS[1]]), expected[1:2], **CLOSE)
    assert encoder.embed([]).shape == (0, WIDTH)
    for prompt in ("query", "document"):  # as every model of sentence-transformers has them
        np.testing.assert_allclose(encoder.embed(TEXTS, prompt=prompt), expected, **CLOSE)
    assert encoder.dimensions == WIDTH
    np.testing.assert_allclose(encoder.embed(TEXTS, normalize=True), normal(expected), **CLOSE)
    np.testing.assert_allclose(encoder.embed(TEXTS, dimensions=2), expected[:, :2], **CLOSE)
    cut = normal(expected[:, :2])
    np.testing.assert_allclose(encoder.embed(TEXTS, dimensions=2, normalize=True), cut, **CLOSE)


def test_texts_of_different_lengths_run_together(folder: Path) -> None:
    with text.load(folder, "cpu") as model:
        before = model.pool.stats().devices[0]
        many = ["rows " * (1 + i % 7) for i in range(700)]
        found = model.embed(many)
        after = model.pool.stats().devices[0]
        assert after.done - before.done == 700
        assert after.runs - before.runs < 350
        np.testing.assert_allclose(found, model.embed(many[:7])[np.arange(700) % 7], **CLOSE)


def test_a_stream_is_read_as_it_is_needed(encoder: text.TextModel, expected: np.ndarray) -> None:
    found = encoder.embed_stream(itertools.cycle(TEXTS))
    for i in range(300):
        np.testing.assert_allclose(next(found), expected[i % len(TEXTS)], **CLOSE)
    found.close()  # type: ignore[attr-defined]
    texts = ["a", "b", 3, "c"]
    stream = encoder.embed_stream(texts, normalize=True)
    assert [next(stream).shape for _ in range(2)] == [(WIDTH,)] * 2
    with pytest.raises(ortmulti.InvalidType, match="text 2 is a text or a list of tokens, not int"):
        next(stream)
    with pytest.raises(ortmulti.InvalidArgument, match="dimensions is 1 to 6, not 7"):
        next(encoder.embed_stream(TEXTS, dimensions=7))


def test_tokens_take_the_place_of_texts(encoder: text.TextModel, folder: Path, expected: np.ndarray) -> None:
    ids = exports.tokens(folder, TEXTS[1]).ids
    for given in (ids, tuple(ids), np.array(ids), np.array(ids, np.int32)):
        np.testing.assert_allclose(encoder.embed([TEXTS[0], given]), expected[:2], **CLOSE)  # type: ignore[list-item]
    long = [5, *[6] * 300]
    right, left = (exports.TABLE[ids].mean(0) * 2 for ids in (long[:256], long[-256:]))
    np.testing.assert_allclose(encoder.embed([long])[0], right, **CLOSE)
    np.testing.assert_allclose(encoder.embed([long], truncate="left")[0], left, **CLOSE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[]], "text 0 has no tokens"),
        (["a", [1, -1]], "text 1 has the token -1, and tokens are 0 to "),
        ([[10**6]], "text 0 has the token 1000000"),
        ([[2**70]], "the tokens of text 0 are ints"),
        ([[1.5]], "the tokens of text 0 are ints"),
        ([[True]], "the tokens of text 0 are ints"),
        ([["a"]], "the tokens of text 0 are ints"),
        ([[1, [2]]], "the tokens of text 0 are ints"),
        ([None], "text 0 is a text or a list of tokens, not NoneType"),
        ([b"a"], "text 0 is a text or a list of tokens, not bytes"),
        (["a"] * 70 + [3], "text 70 is a text or a list of tokens, not int"),
        (["a", "b\ud800"], "text 1 has half of a surrogate pair at 1"),
        (["a", ("b", 3)], "text 1 is a pair with a int"),
        (["a", ("b", "c", "d")], "text 1 is a pair of 3 texts"),
        ("a", "texts is a list of texts, not one: give [text]"),
        (b"a", "texts is a list of texts, not bytes"),
        (3, "texts is a list of texts, not int"),
        (iter(["a"]), "texts is a list of texts, not list_iterator"),
    ],
)
def test_what_is_no_text_is_refused(encoder: text.TextModel, given: Any, message: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument) as caught:
        encoder.embed(given)
    assert message in str(caught.value)
    with pytest.raises(ortmulti.InvalidArgument) as caught:
        asyncio.run(encoder.embed_async(given))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dimensions": 7}, "dimensions is 1 to 6, not 7"),
        ({"dimensions": 0}, "dimensions is 1 to 6, not 0"),
        ({"dimensions": "2"}, "dimensions is an int"),
        ({"normalize": 1}, "normalize is True, False or None"),
        ({"truncate": "middle"}, "truncate is True, False, 'right' or 'left', not 'middle'"),
        ({"prompt": 3}, "prompt is a str, not 3"),
        ({"prompt": "qurey"}, "prompt is one of 'query', 'document', or a text that ends with a blank, not 'qurey'"),
    ],
)
def test_wrong_arguments(encoder: text.TextModel, arguments: dict[str, Any], message: str) -> None:
    for call in (encoder.embed, lambda texts, **more: asyncio.run(encoder.embed_async(texts, **more))):
        with pytest.raises(ortmulti.InvalidArgument) as caught:
            call(["a", "b"], **arguments)
        assert message in str(caught.value)


def test_long_texts_are_cut_or_refused(encoder: text.TextModel, folder: Path) -> None:
    long = " ".join(["cat"] * 10 + ["rows"] * 600)
    full = exports.tokens(folder, long, None, 10_000).ids
    left = exports.TABLE[[full[0], *full[-255:]]].mean(0) * 2
    np.testing.assert_allclose(encoder.embed([long], truncate="left")[0], left, **CLOSE)
    np.testing.assert_allclose(encoder.embed([long], truncate="right"), encoder.embed([long]), **CLOSE)
    for texts in (["a", long], [long]):
        with pytest.raises(ortmulti.InvalidArgument) as caught:
            encoder.embed(texts, truncate=False)
        assert f"text {len(texts) - 1} has {len(full)} tokens, and the model takes 256" in str(caught.value)
    np.testing.assert_allclose(encoder.embed(TEXTS[:2], truncate=False), encoder.embed(TEXTS[:2]), **CLOSE)
    assert encoder.count_tokens([long, "cat", ""]) == [len(full), 3, 2]


def test_what_is_read_of_a_text_is_bounded(encoder: text.TextModel) -> None:
    """64 characters for each token that the model takes, from the side that is kept."""
    most = max(16_384, 64 * encoder.settings.max_length)
    blank = " " * most
    for call in (encoder.embed, lambda texts, **more: asyncio.run(encoder.embed_async(texts, **more))):
        found = call([blank + "cat", blank[3:] + "cat", "cat"])
        np.testing.assert_allclose(found, encoder.embed(["", "cat", "cat"]), **CLOSE)
        np.testing.assert_allclose(call([blank + "cat"], truncate="left"), encoder.embed(["cat"]), **CLOSE)
        with pytest.raises(ortmulti.InvalidArgument, match=f"text 1 has {most + 3} characters, and the model takes"):
            call(["a", blank + "cat"], truncate=False)


def test_a_model_that_keeps_the_end_of_texts_reads_the_end(tmp_path: Path) -> None:
    exports.export(tmp_path, files={"tokenizer_config.json": {"truncation_side": "left"}})
    with text.load(tmp_path, "cpu") as model:
        assert model.settings.truncation_side == "left"
        np.testing.assert_allclose(
            model.embed(["rows " * 20_000 + "cat"]), model.embed(["rows " * 300 + "cat"]), **CLOSE
        )


def test_any_length_that_the_files_allow(tmp_path: Path) -> None:
    """An array for the longest of these would take 16 GiB."""
    exports.export(tmp_path, files={"config.json": {"max_position_embeddings": 2**31 - 1}})
    with text.load(tmp_path, "cpu") as model:
        assert model.settings.max_length == 2**31 - 1
        counts: list[int] = []
        texts = ["rows " * length for length in (3, 600, 500, 5000, 1)]
        found = model.embed(texts, counts=counts)
        assert counts == [5, 602, 502, 5002, 3]
        wanted = [exports.vectors_of(tmp_path, one, 10_000).mean(0) for one in texts]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_position_ids_are_counted(tmp_path: Path) -> None:
    inputs = (*exports.INPUTS, "token_type_ids", "position_ids")
    exports.export(tmp_path, inputs=inputs)
    wanted = [exports.vectors_of(tmp_path, one).mean(0) for one in TEXTS]
    with text.load(tmp_path, "cpu") as model:
        np.testing.assert_allclose(model.embed(TEXTS), wanted, **CLOSE)
    names = "int64[batch, n] input_ids, int64[batch, n] attention_mask, int64[batch, n] position_ids"
    nodes = "found = Cast <to = 1> (position_ids) last_hidden_state = Unsqueeze (found, two)"
    made = onnx_models.with_weights(f"({names}) => (float[batch, n, 1] last_hidden_state) {{ {nodes} }}", two=[2])
    (tmp_path / "model.onnx").write_bytes(made)
    with text.load(tmp_path, "cpu") as model:
        counts: list[int] = []
        found = model.embed(TEXTS, counts=counts)
        np.testing.assert_allclose(found[:, 0], [(count - 1) / 2 for count in counts], **CLOSE)


def test_prompts(tmp_path: Path) -> None:
    files = {
        "config_sentence_transformers.json": {
            "prompts": {"query": "rows of ", "none": ""},
            "default_prompt_name": "query",
        },
        "modules.json": exports.modules("Pooling"),
        "1_Pooling/config.json": {"include_prompt": False},
    }
    exports.export(tmp_path, files=files)
    with text.load(tmp_path, "cpu") as model:
        for prompt, before in ((None, "rows of "), ("query", "rows of "), ("none", ""), ("", ""), ("a cat ", "a cat ")):
            skipped = len(exports.tokens(tmp_path, before).ids) - 1 if before else 0
            wanted = [exports.vectors_of(tmp_path, before + one)[skipped:].mean(0) for one in TEXTS[:2]]
            np.testing.assert_allclose(model.embed(TEXTS[:2], prompt=prompt), wanted, **CLOSE)
            np.testing.assert_allclose(list(model.embed_stream(TEXTS[:2], prompt=prompt)), wanted, **CLOSE)
        for call in (model.embed, model.embed_stream):
            with pytest.raises(ortmulti.InvalidArgument, match="one of 'query', 'document', 'none', or a text"):
                list(call(["a"], prompt="qurey"))
        ids = exports.tokens(tmp_path, TEXTS[0]).ids
        np.testing.assert_allclose(
            model.embed([ids], prompt=""), [exports.vectors_of(tmp_path, TEXTS[0]).mean(0)], **CLOSE
        )


def _weighted(tokens: np.ndarray) -> np.ndarray:
    weights = np.arange(1, len(tokens) + 1)
    made: np.ndarray = weights @ tokens / weights.sum()
    return made


POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda tokens: tokens[0],
    "mean": lambda tokens: tokens.mean(0),
    "last": lambda tokens: tokens[-1],
    "max": lambda tokens: tokens.max(0),
    "mean_sqrt_len": lambda tokens: tokens.sum(0) / len(tokens) ** 0.5,
    "weightedmean": _weighted,
}


@pytest.mark.parametrize("pooling", list(POOLINGS))
def test_poolings_of_texts_that_run_together(folder: Path, pooling: Any) -> None:
    wanted = [POOLINGS[pooling](exports.vectors_of(folder, one)) for one in TEXTS]
    with text.load(folder, "cpu", pooling=pooling) as model:
        np.testing.assert_allclose(model.embed(TEXTS * 8), wanted * 8, **CLOSE)


@pytest.mark.parametrize("outputs", [("sentence_embedding",), ("token_embeddings", "sentence_embedding"), ("other",)])
def test_outputs_of_other_names(tmp_path: Path, outputs: tuple[str, ...]) -> None:
    exports.export(tmp_path, *outputs)
    wanted = [exports.vectors_of(tmp_path, one).mean(0) for one in TEXTS]
    half = 0.5 if "sentence_embedding" in outputs else 1.0  # the tokens have the mean once more
    with text.load(tmp_path, "cpu") as model:
        np.testing.assert_allclose(model.embed(TEXTS), np.array(wanted) * half, **CLOSE)


def test_models_of_other_types(tmp_path: Path) -> None:
    """Of a release with 32-bit tokens and half precision, and without a mask: then only one length runs together."""
    inputs = (*exports.INPUTS, "token_type_ids")
    exports.export(tmp_path, of_ids="int32", to="float16", inputs=inputs)
    wanted = [exports.vectors_of(tmp_path, one).mean(0) for one in TEXTS]
    with text.load(tmp_path, "cpu") as model:
        found = model.embed(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


def test_lower_case_and_a_tokenizer_without_special_tokens(tmp_path: Path) -> None:
    exports.export(tmp_path, special=False, files={"sentence_bert_config.json": {"do_lower_case": True}})
    with text.load(tmp_path, "cpu") as model:
        np.testing.assert_allclose(model.embed(["A CAT"]), model.embed(["a cat"]), **CLOSE)
        with pytest.raises(ortmulti.InvalidArgument, match="text 1 has no tokens: leave it out"):
            model.embed(["a", "", "b"])


# --- Ranks and classes ------------------------------------------------------------------------------------------------


def test_ranks(ranks: text.TextModel) -> None:
    folder, texts = ranks.settings.folder, TEXTS[:2] + TEXTS[3:]
    logits = np.array([exports.logits_of(folder, "cat", one, typed=True)[0] for one in texts])
    counts: list[int] = []
    np.testing.assert_allclose(ranks.rank("cat", texts, raw_scores=True, counts=counts), logits, **CLOSE)
    assert counts == [len(exports.tokens(folder, "cat", one).ids) for one in texts]
    scores = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(ranks.rank("cat", texts), scores, **CLOSE)
    np.testing.assert_allclose(asyncio.run(ranks.rank_async("cat", texts)), scores, **CLOSE)
    assert ranks.rank("cat", []).shape == (0,)
    long = TEXTS[2]
    cut = exports.logits_of(folder, "cat", long, typed=True)
    np.testing.assert_allclose(ranks.rank("cat", [long], raw_scores=True), cut, **CLOSE)
    uncut = len(exports.tokens(folder, "cat", long, 10_000).ids)
    with pytest.raises(ortmulti.InvalidArgument, match=f"text 1 has {uncut} tokens, and the model takes 256"):
        ranks.rank("cat", ["a", long], truncate=False)
    with pytest.raises(ortmulti.InvalidType, match="query is a str, not 3"):
        ranks.rank(3, texts)
    with pytest.raises(ortmulti.InvalidType, match="text 1 is a pair with a list"):
        ranks.rank("a", ["b", [1]])  # type: ignore[list-item]


def test_a_default_prompt_of_a_ranking_is_put_before_the_query(tmp_path: Path) -> None:
    of_library = {"model_type": "CrossEncoder", "prompts": {"query": "rows of "}, "default_prompt_name": "query"}
    config = {"id2label": {"0": "LABEL_0"}}
    exports.export(tmp_path, "logits", files={"config.json": config, "config_sentence_transformers.json": of_library})
    with text.load(tmp_path, "cpu") as model:
        wanted = [exports.logits_of(tmp_path, "rows of cat", one)[0] for one in TEXTS[:2]]
        np.testing.assert_allclose(model.rank("cat", TEXTS[:2], raw_scores=True), wanted, **CLOSE)
        for prompt, before in (("", ""), ("query", "rows of "), ("a batch ", "a batch ")):
            wanted = [exports.logits_of(tmp_path, f"{before}cat", one)[0] for one in TEXTS[:2]]
            found = model.rank(["cat", "cat"], TEXTS[:2], prompt=prompt, raw_scores=True)
            np.testing.assert_allclose(found, wanted, **CLOSE)
            found = asyncio.run(model.rank_async("cat", TEXTS[:2], prompt=prompt, raw_scores=True))
            np.testing.assert_allclose(found, wanted, **CLOSE)


def test_classes(classes: text.TextModel) -> None:
    folder, texts = classes.settings.folder, [TEXTS[0], (TEXTS[1], TEXTS[3])]
    logits = np.array(
        [exports.logits_of(folder, TEXTS[0], labels=3), exports.logits_of(folder, TEXTS[1], TEXTS[3], labels=3)]
    )
    names = ("bad", "so so", "good")
    for found in (
        classes.classify(texts, raw_scores=True),
        asyncio.run(classes.classify_async(texts, raw_scores=True)),
    ):
        for one, wanted in zip(found, logits, strict=True):
            assert [label.score for label in one] == sorted((label.score for label in one), reverse=True)
            np.testing.assert_allclose([dict(one)[name] for name in names], wanted, **CLOSE)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for one, wanted in zip(classes.classify(texts), shares, strict=True):
        np.testing.assert_allclose([dict(one)[name] for name in names], wanted, **CLOSE)
        assert isinstance(one[0], text.Label)
        assert isinstance(one[0].score, float)
    assert classes.classify([]) == []


def test_a_call_that_is_not_the_models(encoder: text.TextModel, ranks: text.TextModel, classes: text.TextModel) -> None:
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
        (encoder.rank, ("a", ["b"]), "is for embedding: call embed(), or load it with task='ranking'"),
        (encoder.classify, (["b"],), "is for embedding: call embed(), or load it with task='classification'"),
        (ranks.embed, (["b"],), "is for ranking: call rank(), or load it with task='embedding'"),
        (classes.rank, ("a", ["b"]), "is for classification: call classify()"),
    ]
    for call, arguments, message in calls:
        with pytest.raises(ortmulti.InvalidArgument) as caught:
            call(*arguments)
        assert message in str(caught.value)


def test_labels_that_do_not_fit_the_model(tmp_path: Path) -> None:
    exports.export(tmp_path, "logits", labels=3)
    ranks, classes = (text.load(tmp_path, "cpu", task=task) for task in ("ranking", "classification"))
    with ranks, pytest.raises(ortmulti.InvalidArgument, match="the model has 3 labels, and a ranking needs one score"):
        ranks.rank("a", ["b"])
    with classes, pytest.raises(ortmulti.InvalidArgument, match=r"config.json names 2 labels, and the model has 3"):
        classes.classify(["b"])
