"""Sessions on GPUs."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import ortmulti
from ortmulti import _core
from ortmulti._runtime.libraries import release_of
from tests.support import onnx_models
from tests.support.gpus import CUDA, VISIBLE, check_gpu_child, cuda_session
from tests.support.processes import check_child

pytestmark = pytest.mark.gpu

CPU = "CPUExecutionProvider"
IMAGES: Any = np.random.default_rng(0).standard_normal((2, 3, 16, 16), dtype=np.float32)


def test_onnxruntime_here_has_cuda() -> None:
    """Otherwise this module would have been skipped."""
    assert CUDA in onnxruntime.get_available_providers()
    assert CUDA in ortmulti.get_available_providers()


# --- Devices ----------------------------------------------------------------------------------------------------------


def test_devices_are_described() -> None:
    devices = _core.cuda_devices()
    assert [device.index for device in devices] == list(range(_core.cuda_device_count()))
    for device in devices:
        free, total = _core.cuda_memory(device.index)
        assert 0 < free <= total <= device.total_memory
        assert device.compute_capability >= (5, 0)
        assert device.name
        assert device.uuid.startswith("GPU-")
    assert len({device.uuid for device in devices}) == len(devices)
    assert len({device.pci_bus_id for device in devices}) == len(devices)
    if shutil.which("nvidia-smi") and VISIBLE["CUDA_VISIBLE_DEVICES"] is None:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout.split()
        assert {device.uuid for device in devices} <= set(listed)


def test_all_means_every_gpu_and_their_outputs_are_equal() -> None:
    model = onnx_models.convolution()
    expected = onnx_models.cpu_session(model).run(None, {"x": IMAGES})[0]
    with ortmulti.create_sessions(model, "all") as sessions:
        assert sessions.devices == [f"cuda:{i}" for i in range(_core.cuda_device_count())]
        results = [session.run(None, {"x": IMAGES})[0] for session in sessions]
        for session in sessions:
            assert session.get_providers() == [CUDA, CPU]
            assert session._core.intra_op_num_threads() == 1
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], expected, atol=1e-2)


def test_the_default_is_the_first_gpu() -> None:
    session = ortmulti.InferenceSession(onnx_models.matmul())
    assert (session.device, session.get_providers()) == ("cuda:0", [CUDA, CPU])
    assert session.get_provider_options()[CUDA] == {}


def test_a_session_on_each_gpu_by_device_id() -> None:
    for index in range(_core.cuda_device_count()):
        session = cuda_session(onnx_models.convolution(), device_id=index)
        assert session.device == f"cuda:{index}"
        assert session.run(None, {"x": IMAGES})[0].shape == (2, 8, 16, 16)


def test_cpu_and_gpu_together() -> None:
    with ortmulti.create_sessions(onnx_models.convolution(), ["cpu", "cuda:0", "cpu"]) as sessions:
        assert sessions.devices == ["cpu", "cuda:0", "cpu"]
        first, gpu, second = [session.run(None, {"x": IMAGES})[0] for session in sessions]
    np.testing.assert_allclose(first, second, atol=1e-5)
    np.testing.assert_allclose(gpu, first, atol=1e-2)


def test_provider_options_reach_every_gpu() -> None:
    with ortmulti.create_sessions(onnx_models.matmul(), "all", provider_options={"use_tf32": False}) as sessions:
        for index, session in enumerate(sessions):
            assert session.get_provider_options()[CUDA] == {"device_id": str(index), "use_tf32": "0"}


def test_the_timeline_has_the_start_of_cuda() -> None:
    printed = check_gpu_child(
        """
        import sys
        import ortmulti
        sessions = ortmulti.create_sessions(bytes.fromhex(sys.argv[1]), "all")
        for span in sessions.timeline.spans:
            print(span.name, span.device or "-", sep=":")
        """,
        onnx_models.matmul(8).hex(),
    )
    spans = printed.split("\n")
    assert "cuInit:-" in spans
    for index in range(_core.cuda_device_count()):
        assert f"context:cuda:{index}" in spans
        assert f"create session:cuda:{index}" in spans


# --- Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element_type", [*sorted(onnx_models.NUMERIC), TensorProto.STRING])
def test_every_type_goes_through_a_gpu_session(element_type: int) -> None:
    session = cuda_session(onnx_models.identity(element_type))
    if element_type == TensorProto.STRING:
        array: Any = np.array(["a", "", "é\0漢"], object)
    else:
        array = np.arange(6).reshape(2, 3).astype(onnx_models.NUMERIC[element_type])
    for x in (array, array[::-1], array[:0]):
        [y] = session.run(None, {"x": x})
        assert (y.dtype, y.shape, y.tolist()) == (x.dtype, x.shape, x.tolist())


def test_an_output_that_is_an_input_is_right_in_a_new_sessions_first_run() -> None:
    """ONNX Runtime may read it on the GPU before it is there."""
    x = np.arange(1, 4, dtype=np.float32)
    for _ in range(60):
        with cuda_session(onnx_models.constant_outputs()) as session:
            np.testing.assert_array_equal(session.run(["x"], {"x": x})[0], x)


def test_outputs_outlive_the_session() -> None:
    # Not the output that is an input: onnxruntime-gpu 1.31.1 may give an earlier run's, also without ortmulti.
    names = ["initializer", "folded", "y"]
    session = cuda_session(onnx_models.constant_outputs())
    x = np.arange(5, dtype=np.float32)
    results = session.run(names, {"x": x})
    expected = [result.copy() for result in results]
    session.close()
    again = cuda_session(onnx_models.constant_outputs()).run(names, {"x": np.full(5, 9, np.float32)})
    for actual, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    assert again[2].tolist() == [-9] * 5


def test_threads_that_share_a_session_get_their_own_results() -> None:
    session = cuda_session(onnx_models.convolution())
    batches = [IMAGES * np.float32(i) for i in range(1, 9)]
    expected = [session.run(None, {"x": batch})[0] for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: (i % 8, session.run(None, {"x": batches[i % 8]})[0]), range(200)))
    for i, result in results:
        np.testing.assert_allclose(result, expected[i], atol=1e-2 * (i + 1))


def test_onnxruntimes_sessions_and_ours_side_by_side() -> None:
    """In a process of its own, each library's first session before and after the other's."""
    for first in ("ours", "theirs"):
        printed = check_gpu_child(
            """
            import sys
            import numpy as np
            import onnxruntime
            import ortmulti

            onnxruntime.preload_dlls()
            model, x = bytes.fromhex(sys.argv[1]), np.ones((2, 3, 16, 16), np.float32)
            cuda = ["CUDAExecutionProvider"]
            make = {
                "ours": lambda: ortmulti.InferenceSession(model, providers=cuda),
                "theirs": lambda: onnxruntime.InferenceSession(model, providers=cuda),
            }
            order = [sys.argv[2], *({"ours", "theirs"} - {sys.argv[2]})]
            sessions = [make[name]() for name in order * 2]
            results = [session.run(None, {"x": x})[0] for session in sessions * 2]
            print(*{session.get_providers()[0] for session in sessions})
            print(all((result == results[0]).all() for result in results))
            """,
            onnx_models.convolution().hex(),
            first,
        )
        assert printed.splitlines() == [CUDA, "True"]


def test_a_registered_cuda_plugin_is_used_instead_of_the_built_in_provider() -> None:
    """onnxruntime-gpu's own library has the interface of plug-ins from 1.31 on; coming releases may have that alone."""
    if release_of(ortmulti.get_version_string()) < (1, 31) or _core.cuda_plugin():
        pytest.skip("needs onnxruntime-gpu 1.31 with CUDA built in")
    printed = check_gpu_child(
        """
        import sys
        from pathlib import Path
        import numpy as np
        import onnxruntime
        import ortmulti
        model, x = bytes.fromhex(sys.argv[1]), {"x": np.ones((4, 64), np.float32)}
        library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
        answers = []
        with ortmulti.load(model, "cuda:0") as built_in:
            answers += built_in.run(x)
        ortmulti.register_execution_provider_library("mine", str(library))
        with ortmulti.load(model, "cuda:0") as pool:
            answers += pool.run(x)
            print(*pool.devices, np.array_equal(*answers), pool.timeline.not_shared)
            try:
                ortmulti.unregister_execution_provider_library("mine")
            except ortmulti.Fail as error:
                print(error)
        options = ortmulti.SessionOptions()
        device = next(device for device in ortmulti.get_ep_devices() if device.ep_name == "CUDAExecutionProvider")
        options.add_provider_for_devices([device], {"no_such_option": "1"})
        try:
            ortmulti.InferenceSession(model, options)
        except ortmulti.Error as error:
            print(error)
        ortmulti.unregister_execution_provider_library("mine")
        """,
        onnx_models.matmul().hex(),
    )
    used, refused, *unknown = printed.splitlines()
    assert used == "cuda:0 True []"
    assert "1 session uses its devices" in refused
    assert "no_such_option" in "".join(unknown)


# --- Bad input --------------------------------------------------------------------------------------------------------


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ortmulti.Error, match="no_such_option"):
        cuda_session(onnx_models.matmul(), no_such_option=1)
    with pytest.raises(ortmulti.Error, match="no_such_option"):
        ortmulti.create_sessions(onnx_models.matmul(), "all", provider_options={"no_such_option": 1})
    with pytest.raises(ortmulti.Error, match="arena_extend_strategy"):
        cuda_session(onnx_models.matmul(), arena_extend_strategy="sideways")


def test_a_gpu_that_does_not_exist() -> None:
    count = _core.cuda_device_count()
    for create in (
        lambda: cuda_session(onnx_models.matmul(), device_id=count),
        lambda: ortmulti.create_sessions(onnx_models.matmul(), ["cuda:0", count]),
    ):
        with pytest.raises(ortmulti.DeviceError, match=f"no cuda:{count}: this process sees cuda:0 .*name one"):
            create()
    with pytest.raises(ortmulti.InvalidArgument, match=r"device_id.*'first'"):
        cuda_session(onnx_models.matmul(), device_id="first")
    with pytest.raises(ortmulti.InvalidArgument, match="device_id"):
        ortmulti.create_sessions(onnx_models.matmul(), 0, provider_options={"device_id": 0})


def test_hidden_gpus_are_no_gpus() -> None:
    printed = check_child(
        """
        import sys
        import ortmulti
        model = bytes.fromhex(sys.argv[1])
        print(*ortmulti.create_sessions(model, "all").devices, ortmulti.InferenceSession(model).device)
        for create in (
            lambda: ortmulti.InferenceSession(model, providers=["CUDAExecutionProvider"]),
            lambda: ortmulti.create_sessions(model, 0),
        ):
            try:
                create()
            except ortmulti.DeviceError as error:
                print("no cuda:0" in str(error))
        """,
        onnx_models.matmul().hex(),
    )
    assert printed.splitlines() == ["cpu cpu", "True", "True"]
