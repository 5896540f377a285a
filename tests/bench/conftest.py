"""What several modules share: a model and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortmulti.bench import models
from tests.support import chromium


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products of matrices, whose 1 MB of weights is in a file of its own."""
    return models.make("matmul", tmp_path_factory.mktemp("matmul"), megabytes=1)


@pytest.fixture(scope="module")  # no longer: its processes are children of this one, which other modules count
def browser() -> Iterator[chromium.Browser]:
    if not (chromium.CHROMIUM and chromium.DRIVER):
        pytest.skip("needs Chromium and chromedriver (chromium, chromium-driver)")
    with chromium.browser() as shown:
        yield shown
