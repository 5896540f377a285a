"""Sessions of one model, this package's and onnxruntime's. Modules with another model have fixtures of their own."""

from __future__ import annotations

from typing import Any

import pytest

import ortmulti
from tests.support import onnx_models


@pytest.fixture(scope="module")
def session() -> ortmulti.InferenceSession:
    """sum, product, first of a and b."""
    return ortmulti.InferenceSession(onnx_models.add_mul(3), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The same, of the onnxruntime package."""
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(onnx_models.add_mul(3), providers=["CPUExecutionProvider"])
