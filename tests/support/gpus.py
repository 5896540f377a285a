"""GPUs in tests."""

from __future__ import annotations

import os
from typing import Any

import pytest

import ortmulti
from ortmulti import _core
from ortmulti._runtime.libraries import release_of

CUDA = "CUDAExecutionProvider"

# The environment of a child interpreter that sees the GPUs that this one sees.
VISIBLE = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}


def needs_gpus(count: int) -> None:
    if _core.cuda_device_count() < count:
        pytest.skip(f"needs {count} GPUs")


def needs_graphs() -> None:
    if release_of(ortmulti.get_version_string()) < (1, 23):
        pytest.skip("CUDA graphs need ONNX Runtime 1.23")


def cuda_session(model: Any, **cuda: Any) -> ortmulti.InferenceSession:
    """A session on the GPU, with options of the CUDA provider."""
    return ortmulti.InferenceSession(model, providers=[(CUDA, cuda)])
