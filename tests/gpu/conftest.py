"""Models and sessions of tests on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ortmulti
from ortmulti.bench import models
from ortmulti.pool import graphs


@pytest.fixture(autouse=True)
def no_other_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of the process may have used PyTorch, beside which no graph is made."""
    monkeypatch.setattr(graphs, "waits_for_gpus", str)


@pytest.fixture(scope="session")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("resnet50", tmp_path_factory.mktemp("resnet50"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of many small kernels."""
    return models.make("tiny-kernels", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def session() -> Iterator[ortmulti.InferenceSession]:
    from tests.support.torch import session_with_kernels

    with session_with_kernels() as made:
        yield made
