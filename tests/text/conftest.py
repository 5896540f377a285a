"""Models of texts that several tests ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ortmulti import text
from tests.support import exports
from tests.support.exports import TEXTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exports.export(tmp_path_factory.mktemp("exports") / "encoder")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[text.TextModel]:
    with text.load(folder, "cpu") as model:
        yield model


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    return np.array([exports.vectors_of(folder, one).mean(0) for one in TEXTS])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[text.TextModel]:
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "max_position_embeddings": 256,
    }
    folder = tmp_path_factory.mktemp("exports") / "ranks"
    inputs = (*exports.INPUTS, "token_type_ids")
    exports.export(folder, "logits", files={"config.json": config}, inputs=inputs)
    with text.load(folder, "cpu") as model:
        yield model


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[text.TextModel]:
    names = {"0": "bad", "1": "so so", "2": "good"}
    config = {"architectures": ["BertForSequenceClassification"], "id2label": names}
    folder = tmp_path_factory.mktemp("exports") / "classes"
    exports.export(folder, "logits", files={"config.json": config}, labels=3)
    with text.load(folder, "cpu") as model:
        yield model
