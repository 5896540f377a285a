"""Devices by name, and one model's sessions on several of them."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Device, InvalidArgument, _core, parse_devices
from tests.support import fake_driver, onnx_models
from tests.support.processes import check_child, lines, run_child

X = np.linspace(-1, 1, 2 * 64, dtype=np.float32).reshape(2, 64)
MISSING = 4096  # no machine has this many GPUs


def test_the_cpu() -> None:
    for devices in ("cpu", Device("cpu"), ["cpu"], iter(["cpu"])):
        assert parse_devices(devices) == [Device("cpu")]
    assert parse_devices(("cpu", Device("cpu"))) == [Device("cpu")] * 2
    assert str(Device("cpu")) == "cpu"


@pytest.mark.parametrize("device", [MISSING, str(MISSING), f"cuda:{MISSING}", Device("cuda", MISSING)])
def test_every_spelling_of_a_gpu_means_it(device: Any) -> None:
    for devices in (device, [device], ["cpu", device]):
        with pytest.raises(ortmulti.DeviceError, match=f"cuda:{MISSING}.*sees") as caught:
            parse_devices(devices)
        assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ("gpu", ValueError, r"'gpu'.*cuda:N.*did you mean 'cuda'\?"),
        ("gpu:1", ValueError, r"did you mean 'cuda:1'\?"),
        ("CPU", ValueError, r"'CPU'.*did you mean 'cpu'\?"),
        ("Tpu", ValueError, "of a plug-in$"),
        ("OpenVINOExecutionProvider", ValueError, r"of a plug-in \(did you mean 'openvino:CPU'\?\)$"),
        ("openvino:XPU", ValueError, r"of a plug-in \(did you mean 'openvino:CPU'\?\)$"),
        ("cpu,cpu", ValueError, "Several devices are a list"),
        *(
            (name, ValueError, f"unknown device '{name}'.*'openvino:CPU' of a plug-in")
            for name in ("fake:", ":CPU", "fake:TPU", "fake:CPU.", "fake:CPU.x", "fake:CPUs", "fa ke:CPU")
        ),
        ("cpu:0", ValueError, "cpu:0"),
        ("cuda:", ValueError, "cuda:"),
        ("cuda:x", ValueError, "cuda:x"),
        ("cuda:-1", ValueError, "cuda:-1"),
        ("cuda:1 ", ValueError, "cuda:1 "),
        ("cuda:99999999999999999999", ValueError, "cuda:9999"),
        ("", ValueError, "''"),
        (-1, ValueError, "-1"),
        ([], ValueError, "empty"),
        (["cpu", "all"], ValueError, "'all'"),
        (1.0, TypeError, "1.0"),
        (True, TypeError, "True"),
        (None, TypeError, "None"),
        ([None], TypeError, "None"),
        (["cpu", ["cpu"]], TypeError, "cpu"),
    ],
)
def test_what_is_no_device_is_refused(devices: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        parse_devices(devices)
    assert isinstance(caught.value, ortmulti.InvalidArgument)
    for create in (ortmulti.create_sessions, ortmulti.load):
        with pytest.raises(error, match=message):
            create(onnx_models.matmul(), devices)


def test_devices_are_values() -> None:
    assert Device("cuda", 1) == Device("cuda", 1) != Device("cuda", 2)
    assert len({Device("cpu"), Device("cpu"), Device("cuda", 0)}) == 2
    assert sorted([Device("cuda", 1), Device("cpu"), Device("cuda", 0)])[0] == Device("cpu")


def test_all_means_the_cpu_where_no_gpu_is_visible() -> None:
    """As in child interpreters, whatever the machine has."""
    code = """
        print(*om.parse_devices("all"))
        sessions = om.create_sessions(model)
        print(*sessions.devices, *sessions[0].get_providers())
        print(om.InferenceSession(model).device)
    """
    assert lines(code, onnx_models.matmul(8)) == ["cpu", "cpu CPUExecutionProvider", "cpu"]


def test_gpus_that_cuda_does_not_show_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    code = "import sys; from ortmulti._runtime import startup; print(startup.hidden_gpus(sys.argv[1]))"
    assert check_child(code, tmp_path) == "2\n"


def test_who_has_a_gpus_memory_without_nvml(tmp_path: Path) -> None:
    driver = fake_driver.build(tmp_path)
    code = """
        import ortmulti
        from ortmulti.devices.memory import memory_of

        print([*memory_of(["cuda:1"])])  # which nobody uses
        memory = ortmulti.gpu_memory("cuda:1")
        print(memory.device, memory.beside, memory.others, dict(memory.uses()), 0 <= memory.used < memory.total)
        print([*memory_of(["cpu", "cuda:1", "cuda:1"])] == [memory])
    """
    assert check_child(code, environment=driver.environment).splitlines() == [
        "[]",
        "cuda:1 None None {'weights': 0, 'arenas': 0, 'graphs': 0, 'buffers': 0} True",
        "True",
    ]


def test_the_cpu_has_no_gpu_memory() -> None:
    with pytest.raises(InvalidArgument, match="cpu is no GPU"):
        ortmulti.gpu_memory("cpu")


@pytest.mark.gpu
def test_a_warning_says_that_all_gpus_are_hidden() -> None:
    child = run_child(
        "import ortmulti; print(*ortmulti.parse_devices('all'))",
        environment={"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": None},
    )
    assert child.stdout == "cpu\n"
    assert "RuntimeWarning: this machine has" in child.stderr
    assert "CUDA_VISIBLE_DEVICES='' hides all of them: devices='all' means the CPU" in child.stderr


def test_sessions_come_in_the_order_asked_for_and_each_runs() -> None:
    [expected] = onnx_models.cpu_session(onnx_models.matmul()).run(None, {"x": X})
    with ortmulti.create_sessions(onnx_models.matmul(), ["cpu", "cpu"], sessions_per_device=2) as sessions:
        assert len(sessions) == 4
        assert sessions.devices == ["cpu"] * 4
        assert list(sessions) == [sessions[i] for i in range(4)]
        assert sessions[-1] is sessions[3]
        assert sessions[1:3] == (sessions[1], sessions[2])
        assert "cpu, cpu" in repr(sessions)
        for session in sessions:
            np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)
    assert all(session.closed for session in sessions)


@pytest.mark.parametrize("serialize", [None, "none", "device", "all"])
def test_serialize(serialize: Any) -> None:
    """With "device" and "all" no two creations overlap in time."""
    with ortmulti.create_sessions(
        onnx_models.matmul(), "cpu", 4, loading=ortmulti.Loading(serialize=serialize, strategy="native")
    ) as sessions:
        spans = sorted(
            (span.start_ns, span.end_ns) for span in sessions.timeline.spans if span.name == "create session"
        )
    assert len(spans) == 4
    if serialize in ("device", "all"):
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_progress_is_told_of_every_session_in_this_thread() -> None:
    calls: list[tuple[int, int, str, int]] = []
    ortmulti.create_sessions(
        onnx_models.matmul(), "cpu", 3, progress=lambda *call: calls.append((*call, threading.get_ident()))
    )
    assert calls == [(done, 3, "cpu", threading.get_ident()) for done in (1, 2, 3)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sessions_per_device": 0}, ValueError, "sessions_per_device"),
        ({"sessions_per_device": 1.0}, TypeError, "sessions_per_device"),
        ({"sessions_per_device": True}, TypeError, "sessions_per_device"),
        ({"serialize": "all"}, TypeError, "'serialize': give loading=ortmulti.Loading.serialize="),
        ({"progress": 3}, TypeError, "progress"),
        ({"options": {}}, TypeError, "options"),
        ({"provider_options": {"use_tf32": 1}}, ValueError, "provider_options.*no device is a GPU"),
        ({"provider_options": [{}]}, TypeError, "provider_options"),
    ],
)
def test_other_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        ortmulti.create_sessions(onnx_models.matmul(), "cpu", **arguments)
    assert isinstance(caught.value, ortmulti.Error)


def test_the_core_names_the_cores_and_devices() -> None:
    assert 1 <= _core.usable_cores() <= len(os.sched_getaffinity(0))
    assert len(_core.cuda_devices()) == _core.cuda_device_count()
