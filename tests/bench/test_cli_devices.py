from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ortmulti
from ortmulti import _core
from ortmulti._runtime.libraries import OVERRIDE, find_onnxruntime
from ortmulti.cli.devices import collect, report
from ortmulti.cli.output import say
from ortmulti.devices.plugins import _registrations
from tests.support import plugins
from tests.support.command import invoke
from tests.support.plugins import plugin_package
from tests.support.processes import check_child

GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_registration_stays() -> Iterator[None]:
    before = set(_registrations)
    yield
    for name in _registrations.keys() - before:
        ortmulti.unregister_execution_provider_library(name)


def printed(facts: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        say(*report(facts))
    return shown.getvalue()


def gpu(index: int, persistence_mode: bool | None) -> dict[str, Any]:
    return {
        "device": f"cuda:{index}",
        "name": "Some [GPU]",
        "memory_total": 80 * GIB,
        "memory_free": (70 + index) * GIB,
        "compute_capability": "9.0",
        "pci_bus_id": f"0000:{index}b:00.0",
        "uuid": f"GPU-{index}",
        "persistence_mode": persistence_mode,
    }


@pytest.fixture
def two_gpus() -> dict[str, Any]:
    """What `collect` gives on a machine with two GPUs, the second of which lacks peer access to the first."""
    system, runtime = (
        {"path": "/lib64/libcublas.so.13", "source": "system", "distribution": None, "problem": None},
        {"path": "/site/libcudart.so.13", "source": "nvidia", "distribution": "cuda-runtime 13.0.96", "problem": None},
    )
    return {
        "devices": [
            {"device": "cpu", "name": "Some CPU", "cores": 8, "memory_total": 64 * GIB},
            gpu(0, True),
            gpu(1, None),
        ],
        "peer_access": [[True, True], [False, True]],
        "hidden_gpus": [{"name": "Hidden GPU", "uuid": "GPU-9", "pci_bus_id": "0000:9b:00.0"}],
        "driver": {"version": "580.95.05", "cuda": "13.0", "problem": None},
        "onnxruntime": {
            "distribution": "onnxruntime-gpu",
            "version": "1.31.1",
            "path": "/somewhere/libonnxruntime.so.1.31.1",
            "cuda": 13,
            "cuda_provider": "built-in",
            "problem": None,
        },
        "cuda_libraries": {"found": [system, runtime], "missing": [], "missing_optional": ["libcudnn.so.9"]},
        "cuda_sessions": {"usable": True, "reasons": []},
        "plugin_devices": [],
        "plugin_packages": [],
    }


def test_this_machine() -> None:
    facts = json.loads(invoke("devices", "--json").stdout)
    gpus = [f"cuda:{index}" for index in range(_core.cuda_device_count())]
    assert [device["device"] for device in facts["devices"]] == ["cpu", *gpus]
    assert facts["devices"][0]["cores"] == _core.usable_cores()
    runtime = find_onnxruntime()
    assert facts["onnxruntime"]["path"] == str(runtime.path)
    assert facts["onnxruntime"]["version"] == (runtime.version or None)
    assert facts["cuda_sessions"]["usable"] == (not facts["cuda_sessions"]["reasons"])
    if not runtime.has_cuda or _core.cuda_driver_version() is None:
        assert not facts["cuda_sessions"]["usable"]
    assert all(line[row] is True and len(line) == len(gpus) for row, line in enumerate(facts["peer_access"]))


def test_a_machine_without_a_gpu_says_so() -> None:
    if _core.cuda_device_count():
        pytest.skip("needs a machine without a GPU")
    text = invoke("devices").stdout
    assert "There is no GPU that this process can use." in text
    assert "Sessions on a GPU will not work:" in text
    assert _core.cuda_driver_problem() in text


def test_a_missing_onnxruntime_is_a_reason_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, "/nonexistent/libonnxruntime.so")
    facts = collect()
    assert "/nonexistent/libonnxruntime.so" in facts["onnxruntime"]["problem"]
    assert facts["onnxruntime"]["problem"] in facts["cuda_sessions"]["reasons"]
    assert facts["onnxruntime"]["problem"] in " ".join(printed(facts).split())


@pytest.mark.parametrize(
    "texts",
    [
        ("cuda:0", "GPU-0", "Some [GPU]", "70.0 GiB / 80.0 GiB", "9.0", "0000:0b:00.0", "on"),
        ("cuda:1", "GPU-1", "unknown"),
        ("cpu", "Some CPU, 8 cores usable", "64.0 GiB"),
        ("Not shown to this process", "Hidden GPU", "GPU-9", "0000:9b:00.0"),
        ("NVIDIA driver", "580.95.05, CUDA 13.0"),
        ("onnxruntime-gpu 1.31.1, for CUDA 13", "/somewhere/libonnxruntime.so.1.31.1"),
        ("/lib64", "libcublas.so.13", "system"),
        ("/site", "libcudart.so.13", "cuda-runtime 13.0.96"),
        ("libcudnn.so.9", "missing", "needed for convolution"),
        ("cuda:0 │", "yes"),
        ("cuda:1 │", "   no   "),
        ("Sessions on the GPUs will work.",),
    ],
)
def test_two_gpus_are_printed_with_everything_known(texts: tuple[str, ...], two_gpus: dict[str, Any]) -> None:
    assert len([line for line in printed(two_gpus).splitlines() if all(text in line for text in texts)]) == 1


def test_plugins_are_listed_with_their_devices(tmp_path: Path) -> None:
    plugin_package(tmp_path, "onnxruntime_ep_fake", plugins.build(tmp_path))
    (tmp_path / "idle").mkdir()
    idle = plugins.build(tmp_path / "idle", DEVICES=0, PROVIDER="IdleExecutionProvider")
    plugin_package(tmp_path, "onnxruntime_ep_idle", idle, "IdleExecutionProvider")
    broken = tmp_path / "onnxruntime_ep_broken"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('a part is missing')")
    code = "import sys; sys.path.append(sys.argv.pop()); from ortmulti.cli import main; main()"
    facts = json.loads(check_child(code, "devices", "--json", tmp_path))
    [device] = [device for device in facts["plugin_devices"] if device["device"] == "fake:CPU"]
    assert (device["provider"], device["version"]) == ("FakeExecutionProvider", "1.2.3")
    problems = {package["package"]: package["problem"] for package in facts["plugin_packages"]}
    assert problems["onnxruntime_ep_fake"] is None
    assert "a part is missing" in problems["onnxruntime_ep_broken"]
    text = printed(facts)
    assert "fake:CPU" in text
    assert "Not usable: the package onnxruntime_ep_broken cannot be used" in text
    assert "Not usable: the package onnxruntime_ep_idle supports no hardware of this machine\n" in text


def test_what_does_not_work_is_printed_as_it_is(two_gpus: dict[str, Any]) -> None:
    reason = 'install them with pip install "onnxruntime-gpu[cuda,cudnn]==1.31.1"'
    two_gpus["onnxruntime"]["cuda_provider"] = "plug-in"
    two_gpus["cuda_sessions"] = {"usable": False, "reasons": [reason]}
    two_gpus["cuda_libraries"]["missing"] = ["libcurand.so.10"]
    text = printed(two_gpus)
    assert "onnxruntime-gpu 1.31.1, for CUDA 13 as a plug-in" in text
    assert f"  - {reason}" in text
    assert "will not work" in text
    assert "libcurand.so.10" in text
