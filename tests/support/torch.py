"""PyTorch on a GPU, in tests: tensors that are there late, and runs with them of `onnx_models.add_mul(WIDTH)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import InferenceSession, OrtValue
from tests.support import onnx_models
from tests.support.gpus import cuda_session

LONG = 400_000_000  # cycles of a GPU: a fifth of a second
WIDTH = 1024


def torch_on_gpu() -> Any:
    """The module, the first GPU being the current one, which a run on another may have changed.

    The kernels that `late` runs are loaded: loading them waits for the GPU.
    """
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    torch.cuda.set_device(0)
    stream = torch.cuda.Stream()
    late(torch, stream, torch.ones(4, device="cuda"), cycles=1, check=False)
    stream.synchronize()
    return torch


def late(torch: Any, stream: Any, wanted: Any, *, cycles: int = LONG, check: bool = True) -> Any:
    """A tensor of zeros that becomes `wanted` in `stream`, after a kernel that takes long and is not waited for."""
    tensor = torch.zeros_like(wanted)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)
        tensor.copy_(wanted)
    if check:
        assert not stream.query(), "the kernel is over already: nothing would be shown"
    return tensor


def numbers(torch: Any, rows: int = 256) -> Any:
    """Different at each place, and exact in float32."""
    return torch.arange(rows * WIDTH, dtype=torch.float32, device="cuda").reshape(rows, WIDTH)


def session_with_kernels() -> InferenceSession:
    """sum, product, first of a and b, on the GPU, once run."""
    session = cuda_session(onnx_models.add_mul(WIDTH))
    session.run(None, {name: np.ones((1, WIDTH), np.float32) for name in "ab"})
    return session


def bound(session: InferenceSession, a: OrtValue, b: OrtValue, output: str = "sum") -> ortmulti.IOBinding:
    """A binding with one output, on the GPU."""
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", a)
    binding.bind_ortvalue_input("b", b)
    binding.bind_output(output, "cuda")
    return binding
