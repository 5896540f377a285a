"""Exports of small models of texts, as Hugging Face's tools lay them out, and what they answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.support import onnx_models
from tests.support.exports import trained

WORDS = ["a cat sits on the mat, and looks at it", "the rows of a batch are independent", "dogs and cats"]
DIMENSIONS = 8
MOST = 64  # tokens of a text
LABELS = ["bad", "good", "none"]
_VOCABULARY = 120
TABLE = np.random.default_rng(7).normal(size=(_VOCABULARY, DIMENSIONS)).astype(np.float32)

_INPUTS = "int64[batch, n] input_ids, int64[batch, n] attention_mask"
_EMBEDS = f"""({_INPUTS}) => (float[batch, n, {DIMENSIONS}] last_hidden_state) {{
    found = Gather(table, input_ids)
    mask = Cast <to = 1> (attention_mask)
    wide = Unsqueeze(mask, last)
    last_hidden_state = Mul(found, wide)
}}"""
# The sum of the second text's tokens, a tenth of it.
_RANKS = f"""({_INPUTS}, int64[batch, n] token_type_ids) => (float[batch, 1] logits) {{
    masked = Mul(input_ids, attention_mask)
    second = Mul(masked, token_type_ids)
    numbers = Cast <to = 1> (second)
    sums = ReduceSum <keepdims = 1> (numbers, axes)
    logits = Mul(sums, tenth)
}}"""
# Of the number of tokens, by each label.
_CLASSIFIES = f"""({_INPUTS}) => (float[batch, 3] logits) {{
    numbers = Cast <to = 1> (attention_mask)
    count = ReduceSum <keepdims = 1> (numbers, axes)
    logits = Mul(count, weights)
}}"""

# Runs until it is ended where a text has the token ENDLESS; else its answer is the number of tokens, and one.
ENDLESS = 7
_MAY_BE_ENDLESS = f"""({_INPUTS}) => (float[batch, 1] sentence_embedding) {{
    highest = ReduceMax <keepdims = 0> (input_ids)
    count = Gather(counts, highest)
    numbers = Cast <to = 1> (attention_mask)
    sums = ReduceSum <keepdims = 1> (numbers, axes)
    sentence_embedding = Loop (count, , sums) <body = body (int64 i, bool go, float[batch, 1] value)
        => (bool go_on, float[batch, 1] next) {{
        go_on = Identity(go)
        next = Add(value, one)
    }}>
}}"""

TOKENIZER = trained(WORDS, _VOCABULARY)


def tokens(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text).ids
    return found if len(found) <= MOST else [*found[: MOST - 1], found[-1]]


def vector(text: str, dimensions: int = DIMENSIONS, *, normalize: bool = True) -> np.ndarray:
    """The mean of the tokens' vectors."""
    found = TABLE[tokens(text)].mean(0)[:dimensions]
    return found / np.linalg.norm(found) if normalize else found


def rank(text: str) -> float:
    """The logit of a text, for any query that leaves it room."""
    return sum(tokens(text)[1:]) / 10


def logits(text: str) -> dict[str, float]:
    return {label: len(tokens(text)) * weight for label, weight in zip(LABELS, (-0.1, 0.1, 0.0), strict=True)}


def _write(folder: Path, model: bytes, architecture: str, **config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model)
    TOKENIZER.save(str(folder / "tokenizer.json"))
    described = {"architectures": [architecture], "model_type": "bert", "max_position_embeddings": MOST}
    (folder / "config.json").write_text(
        json.dumps({**described, "pad_token_id": 0, "vocab_size": _VOCABULARY, **config})
    )
    return folder


def embedding(folder: Path, *, table: np.ndarray = TABLE) -> Path:
    """One of sentence-transformers: the mean of the tokens, and two prompts."""
    model = onnx_models.with_weights(_EMBEDS, table=table, last=[2])
    _write(folder, model, "BertModel")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": DIMENSIONS, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    prompts = {"prompts": {"query": "cats: ", "passage": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


# What the files say is for Python; over HTTP scores are from 0 to 1.
_IDENTITY = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}


def endless(folder: Path) -> Path:
    """One that may run without end."""
    counts = np.where(np.arange(_VOCABULARY) == ENDLESS, onnx_models.LONG, 1)
    model = onnx_models.with_weights(_MAY_BE_ENDLESS, counts=counts, axes=[1], one=np.ones(1, np.float32))
    return _write(folder, model, "BertModel")


def ranking(folder: Path) -> Path:
    """A cross-encoder."""
    model = onnx_models.with_weights(_RANKS, axes=[1], tenth=np.array([0.1], np.float32))
    return _write(folder, model, "BertForSequenceClassification", num_labels=1, id2label={"0": "LABEL_0"}, **_IDENTITY)


def classification(folder: Path) -> Path:
    model = onnx_models.with_weights(_CLASSIFIES, axes=[1], weights=np.array([[-0.1, 0.1, 0]], np.float32))
    labels = {str(index): label for index, label in enumerate(LABELS)}
    return _write(folder, model, "BertForSequenceClassification", id2label=labels)
