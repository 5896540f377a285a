"""What several modules share: a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortmulti.bench import models


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two products of matrices, whose 1 MB of weights is in a file of its own."""
    return models.make("matmul", tmp_path_factory.mktemp("matmul"), megabytes=1)
