"""Sessions of one model, this package's and onnxruntime's, and GPUs that are none. Modules with another model have
fixtures of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import ortmulti
from tests.support import fake_driver, onnx_models


@pytest.fixture(scope="module")
def session() -> ortmulti.InferenceSession:
    """sum, product, first of a and b."""
    return ortmulti.InferenceSession(onnx_models.add_mul(3), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The same, of the onnxruntime package."""
    return onnxruntime.InferenceSession(onnx_models.add_mul(3), providers=["CPUExecutionProvider"])


@pytest.fixture
def memory_driver(tmp_path: Path) -> dict[str, str]:
    """The environment of a child with GPUs whose memory it can read."""
    folder = tmp_path / "driver"
    folder.mkdir()
    return fake_driver.build(folder).environment
