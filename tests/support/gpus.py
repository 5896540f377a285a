"""GPUs in tests."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import _core
from ortmulti._runtime.libraries import release_of
from tests.support import onnx_models, processes

CUDA = "CUDAExecutionProvider"

# The environment of a child interpreter that sees the GPUs that this one sees.
VISIBLE = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}

check_gpu_child = functools.partial(processes.check_child, environment=VISIBLE)


def needs_gpus(count: int) -> None:
    if _core.cuda_device_count() < count:
        pytest.skip(f"needs {count} GPUs")


def needs_graphs() -> None:
    if release_of(ortmulti.get_version_string()) < (1, 23):
        pytest.skip("CUDA graphs need ONNX Runtime 1.23")


def cuda_session(model: Any, **cuda: Any) -> ortmulti.InferenceSession:
    """A session on the GPU, with options of the CUDA provider."""
    return ortmulti.InferenceSession(model, providers=[(CUDA, cuda)])


MODEL = onnx_models.matmul()


def feed(number: int, rows: int = 3) -> dict[str, np.ndarray]:
    """Inputs of `MODEL`, other ones for each number."""
    return {"x": np.random.default_rng(number).standard_normal((rows, 64), dtype=np.float32)}


def free() -> int:
    """The bytes of the first GPU's memory that nobody uses."""
    return _core.cuda_memory(0)[0]


def check_memory_returns(cycle: Callable[[], object], *, rounds: int = 5, most: int = 64 << 20) -> None:
    """Assert that further rounds of `cycle` keep at most so many bytes of each GPU."""

    def each_free() -> list[int]:
        return [_core.cuda_memory(index)[0] for index in range(_core.cuda_device_count())]

    for _ in range(2):
        cycle()  # what stays is there
    before = each_free()
    for _ in range(rounds):
        cycle()
    kept = [had - left for had, left in zip(before, each_free(), strict=True)]
    assert max(kept) < most, kept


def fill(index: int, left: int) -> Callable[[], None]:
    """Take a GPU's memory to the last `left` bytes, by the driver alone; return what gives it back."""
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_uint64()
    size = ctypes.c_size_t(_core.cuda_memory(index)[0] - left)  # this makes its context current here
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), size) == 0

    def release() -> None:
        _core.cuda_memory(index)
        assert cuda.cuMemFree_v2(pointer) == 0

    return release
