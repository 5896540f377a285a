"""Execution providers: one that was asked for and cannot be used is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from ortmulti import _core
from ortmulti._runtime import cuda_libraries, libraries
from tests.support import onnx_models

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
AZURE = "AzureExecutionProvider"
GPU_PROVIDERS = {CUDA, "TensorrtExecutionProvider"}


@pytest.mark.parametrize("providers", [None, [], [CPU], (CPU,), [(CPU, {})], [[CPU, {}]]])
def test_the_cpu_by_any_of_onnxruntimes_spellings(providers: Any) -> None:
    if providers is None and _core.cuda_device_count():
        pytest.skip("the default is a GPU here")
    session = ortmulti.InferenceSession(onnx_models.matmul(), providers=providers)
    assert (session.get_providers(), session.device) == ([CPU], "cpu")


@pytest.mark.parametrize(
    ("providers", "options"),
    [([CPU, CPU], None), ([CPU, (CPU, {})], None), ([CPU, CPU], [{}, {}]), ([AZURE, CPU, AZURE], None)],
)
def test_a_provider_that_is_named_again_is_ignored_with_a_warning(providers: Any, options: Any) -> None:
    if AZURE in providers and AZURE not in ortmulti.get_available_providers():
        pytest.skip("this ONNX Runtime has no such provider")
    found = []
    for package in (onnxruntime, ortmulti):
        with pytest.warns(UserWarning, match="ExecutionProvider.* ignor"):
            session = package.InferenceSession(onnx_models.matmul(), providers=providers, provider_options=options)
        found.append(session.get_providers())
    assert found[0] == found[1]


def test_every_available_provider_that_needs_no_gpu_can_be_used() -> None:
    names = [name for name in ortmulti.get_available_providers() if name not in GPU_PROVIDERS]
    session = ortmulti.InferenceSession(onnx_models.matmul(), providers=names)
    assert session.get_providers() == names
    assert session.run(None, {"x": np.ones((1, 64), np.float32)})[0].shape == (1, 64)


@pytest.mark.parametrize(
    ("providers", "options", "error", "message"),
    [
        (["NoSuchExecutionProvider"], None, ortmulti.InvalidArgument, f"NoSuch.*{CPU}$"),
        (["OpenVINOExecutionProvider"], None, ortmulti.InvalidArgument, f"{CPU}; .* plug-in by its device"),
        (["OpenVinoExecutionProvidr"], None, ortmulti.InvalidArgument, "did you mean 'OpenVINOExecutionProvider'"),
        (["cpu"], None, ortmulti.InvalidArgument, f"'cpu'.*{CPU}"),
        ([(AZURE, {"a": 1}), (AZURE, {"a": 2})], None, ortmulti.InvalidArgument, "'1'.*'2'.*name it once"),
        ([(CPU, None)], None, ortmulti.InvalidType, "dict"),
        ({CPU}, None, ortmulti.InvalidType, "sequence"),
        (CPU, None, ortmulti.InvalidType, "sequence"),
        ([3], None, ortmulti.InvalidType, "3"),
        ([(CPU, {}, 1)], None, ortmulti.InvalidType, "name"),
        ([(CPU, [])], None, ortmulti.InvalidType, "dict"),
        ([(CPU, {"no_such": 1})], None, ortmulti.InvalidArgument, "no_such"),
        ([CPU], [{}, {}], ortmulti.InvalidArgument, "2 entries for 1"),
        ([CPU], {}, ortmulti.InvalidType, "provider_options"),
        ([(CPU, {})], [{}], ortmulti.InvalidType, "names only"),
        (None, [{}], ortmulti.InvalidArgument, "needs providers"),
    ],
)
def test_what_cannot_be_is_refused(providers: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ortmulti.InferenceSession(onnx_models.matmul(), providers=providers, provider_options=options)


def test_a_gpu_that_cannot_be_used_is_an_error_that_says_why() -> None:
    """Never a session on the CPU, as onnxruntime makes it."""
    runtime = libraries.find_onnxruntime()
    try:
        usable = runtime.has_cuda and not cuda_libraries.why_no_cuda(runtime) and _core.cuda_device_count() > 0
    except ortmulti.DeviceError:
        usable = False
    if usable:
        pytest.skip("the GPU can be used here")
    expected = (ortmulti.LibraryError, ortmulti.DeviceError) if runtime.has_cuda else ortmulti.InvalidArgument
    for providers in ([CUDA], [CUDA, CPU], [(CUDA, {"device_id": 0}), CPU]):
        with pytest.raises(expected) as caught:
            ortmulti.InferenceSession(onnx_models.matmul(), providers=providers)
        assert isinstance(caught.value, ortmulti.Error)
        text = str(caught.value)
        assert CUDA in text or "cuda:0" in text
        if not runtime.has_cuda:
            driver = _core.cuda_driver_version() is not None
            assert ('pip install "ortmulti[gpu]"' if driver else "install the NVIDIA driver first") in text
            assert driver or "uninstall" not in text
