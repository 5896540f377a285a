"""Exports of models of texts, as Hugging Face's tools lay them out: tiny models, and a tokenizer trained in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import onnx_models

TEXTS = ["A cat.", "the rows of a batch are independent", "rows " * 600, "a cat sits on the mat, and looks at it"]
WIDTH, VOCABULARY = 6, 120
TABLE = np.random.default_rng(0).standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
LABELS = np.random.default_rng(1).standard_normal((WIDTH, 3)).astype(np.float32)
INPUTS = ("input_ids", "attention_mask")
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
"""How near an answer of a joint run is."""

# A token's vector is what the table has, and its type, and the mean of those of the text.
_CONTEXT = """
    cast = Cast <to = 1> ({mask})
    mask = Unsqueeze (cast, two)
    of_token = Gather (table, input_ids)
    {typed}
    real = Mul (found, mask)
    total = ReduceSum <keepdims = 1> (real, one)
    count = ReduceSum <keepdims = 1> (mask, one)
    mean = Div (total, count)
    tokens = Add (found, mean)
    flat = ReduceSum <keepdims = 0> (mean, one)
    scores = MatMul (flat, labels_of)
"""
_TYPED = "kinds = Cast <to = 1> (token_type_ids) kind = Unsqueeze (kinds, two) found = Add (of_token, kind)"
_UNMASKED = "zero = Sub (input_ids, input_ids) ones = Equal (zero, zero)"
_OUTPUTS = {
    "last_hidden_state": ("[batch, n, 6]", "tokens"),
    "token_embeddings": ("[batch, n, 6]", "tokens"),
    "sentence_embedding": ("[batch, 6]", "flat"),
    "logits": ("[batch, {labels}]", "scores"),
    "other": ("[batch, n, 6]", "tokens"),
}
_TYPES = {"float": 1, "float16": 10}


def trained(texts: list[str], vocabulary: int, *, special: bool = True) -> Any:
    """Return a tokenizer that is trained with these texts, and neither cuts nor pads."""
    tokenizers = pytest.importorskip("tokenizers", reason='needs tokenizers: pip install "ortmulti[text]"')
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=names, show_progress=False)
    made.train_from_iterator(texts, trainer)
    if special:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return made


def tokenizer(path: Path, *, special: bool = True) -> Path:
    """Write one that is trained with the texts, and that cuts and pads as those of sentence-transformers do."""
    made = trained(TEXTS, VOCABULARY, special=special)
    made.enable_truncation(128)
    made.enable_padding(length=128)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(path))
    return path


def tokens(folder: Path, text: str, pair: str | None = None, length: int = 256) -> Any:
    """The encoding of a text by the tokenizer of a folder."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.no_padding()
    made.enable_truncation(length)
    return made.encode(text, pair)


def model(
    *outputs: str, labels: int = 1, inputs: tuple[str, ...] = INPUTS, of_ids: str = "int64", to: str = "float"
) -> bytes:
    """A model of texts with these outputs."""
    declared = ", ".join(f"{of_ids}[batch, n] {name}" for name in inputs)
    shapes = ", ".join(f"{to}{_OUTPUTS[name][0].format(labels=labels)} {name}" for name in outputs)
    masked = "attention_mask" in inputs
    typed = _TYPED if "token_type_ids" in inputs else "found = Identity (of_token)"
    nodes = ["" if masked else _UNMASKED, _CONTEXT.format(mask="attention_mask" if masked else "ones", typed=typed)]
    nodes += [f"{name} = Cast <to = {_TYPES[to]}> ({_OUTPUTS[name][1]})" for name in outputs]
    weights: dict[str, Any] = {"one": [1], "two": [2], "table": TABLE, "labels_of": LABELS[:, :labels]}
    return onnx_models.with_weights(f"({declared}) => ({shapes}) {{ {' '.join(nodes)} }}", **weights)


def export(
    folder: Path,
    *outputs: str,
    at: str = "model.onnx",
    files: dict[str, Any] | None = None,
    special: bool = True,
    **of_model: Any,
) -> Path:
    """Write an export; ``files`` are JSON files, or texts, by their names."""
    path = folder / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model(*(outputs or ("last_hidden_state",)), **of_model))
    tokenizer(folder / "tokenizer.json", special=special)
    given = {"config.json": {"model_type": "bert", "max_position_embeddings": 256}} | (files or {})
    for name, value in given.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return folder


def modules(*kinds: str) -> list[dict[str, Any]]:
    """The content of modules.json."""
    return [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(("Transformer", *kinds))
    ]


def safetensors(**tensors: np.ndarray) -> bytes:
    """A file of safetensors."""
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, array in tensors.items():
        place = [len(content), len(content) + array.nbytes]
        told = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
        header[name.replace("_", ".")] = told
        content += array.tobytes()
    return safetensors_of(json.dumps(header).encode(), content)


def safetensors_of(header: bytes, content: bytes = b"") -> bytes:
    """One with this header."""
    return len(header).to_bytes(8, "little") + header + content


def vectors_of(folder: Path, text: str, length: int = 256) -> np.ndarray:
    """The vectors of a text's tokens, as the model has them."""
    found = TABLE[tokens(folder, text, None, length).ids]
    made: np.ndarray = found + found.mean(0)
    return made


def logits_of(folder: Path, text: str, pair: str | None = None, labels: int = 1, typed: bool = False) -> np.ndarray:
    encoding = tokens(folder, text, pair)
    found = TABLE[encoding.ids] + (np.array(encoding.type_ids, np.float32)[:, None] if typed else 0)
    made: np.ndarray = found.mean(0) @ LABELS[:, :labels]
    return made
