"""Plug-ins of execution providers: a fake one whose nodes all run on the CPU, so that its results are the CPU's."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import _core
from ortmulti.bench.measure.devices import parse_devices
from tests.support import fake_driver, onnx_models, plugins
from tests.support.processes import check_child, lines, nothing_leaks, run_child

MODEL = onnx_models.matmul(8)
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
PROVIDER, CUDA = "FakeExecutionProvider", "CUDAExecutionProvider"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugins.build(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def plugin(library: Path) -> Iterator[Path]:
    with plugins.registered(library):
        yield library


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return np.asarray(onnx_models.cpu_session(MODEL).run(None, {"x": X})[0])


def of_plugin() -> list[ortmulti.OrtEpDevice]:
    return [device for device in ortmulti.get_ep_devices() if device.ep_name == PROVIDER]


def with_provider() -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    options.add_provider_for_devices(of_plugin(), {})
    return options


# The calls of onnxruntime. Child processes ask for nothing compiled: releases before 1.29 log that the provider has
# compiled nothing, and a child's log is an error.


def test_the_devices_are_onnxruntimes(library: Path) -> None:
    code = """
        import sys
        module = __import__(sys.argv[2])
        module.register_execution_provider_library("tests", sys.argv[1])
        for device in module.get_ep_devices():
            hardware = device.device
            print(device.ep_name, device.ep_vendor, sorted(device.ep_metadata.items()), device.ep_options)
            print(int(hardware.type), hardware.type.name, hardware.vendor, hardware.vendor_id, hardware.device_id)
            print(sorted(hardware.metadata.items()))
        module.unregister_execution_provider_library("tests")
        print([device.ep_name for device in module.get_ep_devices()])
    """
    ours, theirs = (check_child(code, library, module) for module in ("ortmulti", "onnxruntime"))
    assert ours == theirs
    assert PROVIDER in ours


@pytest.mark.usefixtures("plugin")
def test_a_session_of_options_with_a_provider_runs_on_its_device(expected: np.ndarray) -> None:
    options = ortmulti.SessionOptions()
    assert not options.has_providers()
    options.add_provider_for_devices(of_plugin(), {"key": "value"})
    assert options.has_providers()
    with ortmulti.InferenceSession(MODEL, options) as session:
        assert session.device == "fake:CPU"
        assert session.get_providers() == [PROVIDER, "CPUExecutionProvider"]
        assert session.get_provider_options() == {PROVIDER: {"key": "value"}, "CPUExecutionProvider": {}}
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
    with ortmulti.create_sessions(MODEL, "cpu", 2, options) as sessions:
        assert sessions.devices == ["fake:CPU", "fake:CPU"]
        np.testing.assert_array_equal(sessions[1].run(None, {"x": X})[0], expected)


@pytest.mark.usefixtures("plugin")
def test_providers_of_the_call_replace_those_of_the_options() -> None:
    options = with_provider()
    with pytest.warns(UserWarning, match=f"have the provider {PROVIDER}.*not used"):
        session = ortmulti.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    assert session.device == "cpu"
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert options.has_providers()


def test_wrong_devices_and_options_are_rejected(plugin: Path) -> None:
    options, devices = ortmulti.SessionOptions(), ortmulti.get_ep_devices()
    for given, values, error, message in (
        ([], {}, ortmulti.InvalidArgument, "ep_devices is empty"),
        (devices, {}, ortmulti.InvalidArgument, "several providers .CPUExecutionProvider, Fake"),
        ([1], {}, ortmulti.InvalidType, "ep_devices holds devices of get_ep_devices"),
        (devices[0], {}, ortmulti.InvalidType, "ep_devices"),
        (devices[-1:], {"a": 1}, ortmulti.InvalidType, "provider_options is a dict of str"),
        (devices[-1:], [], ortmulti.InvalidType, "provider_options is a dict of str"),
    ):
        with pytest.raises(error, match=message):
            options.add_provider_for_devices(given, values)
    assert not options.has_providers()
    with pytest.raises(ortmulti.InvalidType, match="registration_name is a str"):
        ortmulti.register_execution_provider_library(1, str(plugin))
    with pytest.raises(ortmulti.InvalidType, match="registration_name is a str"):
        ortmulti.unregister_execution_provider_library(1)
    with pytest.raises(ortmulti.InvalidArgument, match="registration_name"):
        ortmulti.register_execution_provider_library("", str(plugin))


@pytest.mark.usefixtures("plugin")
def test_options_with_a_provider_do_not_go_with_other_devices() -> None:
    options = with_provider()
    with pytest.raises(ortmulti.InvalidArgument, match=f"have the provider {PROVIDER}.*names fake:CPU"):
        ortmulti.create_sessions(MODEL, "fake:CPU", options=options)
    with pytest.raises(ortmulti.InvalidArgument, match="load takes the device by its name"):
        ortmulti.load(MODEL, "cpu", options=options)


# Faults.


def test_what_cannot_be_registered_is_one_clear_error(library: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    no_plugin = tmp_path / "custom.so"
    no_plugin.write_bytes(Path(_core.__file__).read_bytes())
    other = bytearray(library.read_bytes())
    other[18:20] = b"\xf3\x00"  # of its ELF header: RISC-V
    foreign = tmp_path / "foreign.so"
    foreign.write_bytes(other)
    before = len(ortmulti.get_ep_devices())
    for path, error, message in (
        ("/nowhere.so", ortmulti.NoSuchFile, "'/nowhere.so': there is no such file; check the path"),
        ("nowhere.so", ortmulti.NoSuchFile, "'nowhere.so': there is no such file, nor .*capi/nowhere.so"),
        (tmp_path, ortmulti.NoSuchFile, "this is a directory; give the path of the library in it"),
        (text, ortmulti.LibraryError, "text.so.*not an ELF file; give the path of a plug-in"),
        (foreign, ortmulti.LibraryError, "foreign.so.*another processor; install"),
        (no_plugin, ortmulti.Fail, "custom.so' as 'tests'.*no plug-in.*CreateEpFactories"),
    ):
        with pytest.raises(error, match=re.compile(message, re.DOTALL)):
            ortmulti.register_execution_provider_library("tests", path)
    assert len(ortmulti.get_ep_devices()) == before
    with plugins.registered(library):
        assert len(ortmulti.get_ep_devices()) == before + 1


def test_a_plugin_for_a_newer_onnxruntime_is_an_error_and_no_crash(tmp_path: Path) -> None:
    library = plugins.build(tmp_path, API=999)
    with pytest.raises(ortmulti.LibraryError) as caught:
        ortmulti.register_execution_provider_library("tests", library)
    release = f"ONNX Runtime {ortmulti.get_version_string()}"
    for part in (str(library), release, "SIGSEGV", "API version [999]", "upgrade onnxruntime"):
        assert part in str(caught.value)


def test_a_frozen_program_registers_without_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with plugins.registered(plugins.build(tmp_path), "frozen"):
        assert any(device.ep_name == "FakeExecutionProvider" for device in ortmulti.get_ep_devices())


def test_a_name_is_registered_once(plugin: Path) -> None:
    with pytest.raises(ortmulti.Fail, match=r"as 'tests': a library is already registered under this name; unregister"):
        ortmulti.register_execution_provider_library("tests", plugin)
    assert len(of_plugin()) == 1
    with pytest.raises(ortmulti.Fail, match="'nobody': this name was not registered; registered are 'tests'"):
        ortmulti.unregister_execution_provider_library("nobody")


def test_a_plugin_stays_while_sessions_use_it(library: Path, expected: np.ndarray) -> None:
    ortmulti.register_execution_provider_library("tests", library)
    sessions = ortmulti.create_sessions(MODEL, ["fake:CPU", "fake:CPU"], loading=ortmulti.Loading(strategy="native"))
    with pytest.raises(ortmulti.Fail, match="2 sessions use its devices; close them first"):
        ortmulti.unregister_execution_provider_library("tests")
    sessions[0].close()
    with pytest.raises(ortmulti.Fail, match="1 session uses its devices"):
        ortmulti.unregister_execution_provider_library("tests")
    np.testing.assert_array_equal(sessions[1].run(None, {"x": X})[0], expected)
    sessions.close()
    ortmulti.unregister_execution_provider_library("tests")


def test_devices_of_an_unregistered_plugin_cannot_be_used(library: Path, expected: np.ndarray) -> None:
    with plugins.registered(library):
        options = with_provider()
    message = f"the device of {PROVIDER} belongs to the library 'tests', which is registered no more: register it"
    with pytest.raises(ortmulti.Fail, match=message):
        ortmulti.InferenceSession(MODEL, options)
    with plugins.registered(library):  # the same name, and maybe the same address, but not the same devices
        with pytest.raises(ortmulti.Fail, match=message):
            ortmulti.InferenceSession(MODEL, options)
        with ortmulti.create_sessions(MODEL, "fake:CPU") as sessions:
            np.testing.assert_array_equal(sessions[0].run(None, {"x": X})[0], expected)


def test_nothing_leaks(library: Path) -> None:
    def use() -> None:
        with plugins.registered(library), ortmulti.create_sessions(MODEL, ["fake:CPU", "cpu"]) as sessions:
            sessions[0].run(None, {"x": X})

    use()
    with nothing_leaks():
        for _ in range(5):
            use()


def test_a_forked_child_gets_an_error_and_processes_end_with_sessions_open(library: Path) -> None:
    code = """
        om.register_execution_provider_library("tests", sys.argv[2])
        session = om.create_sessions(model, "fake:CPU", loading=om.Loading(optimize="never"))[0]

        def child():
            for call, *arguments in (
                (session.run, None, {"x": x}),
                (om.get_ep_devices,),
                (om.create_sessions, model, "fake:CPU"),
                (om.register_execution_provider_library, "more", sys.argv[2]),
                (om.unregister_execution_provider_library, "tests"),
            ):
                error = error_of(call, *arguments)
                print(error.startswith("ForkError: ") and "before this process was forked" in error)
            print(om.create_sessions(model, "cpu")[0].run(None, {"x": x})[0].shape)

        print(forked(child), session.run(None, {"x": x})[0].shape)
        pool = om.load(model, ["fake:CPU", "cpu"], 2, loading=om.Loading(optimize="never"))
        futures = [pool.submit(None, {"x": x}) for _ in range(50)]
        session.run_async(None, {"x": x}, lambda *_: None, None)
    """
    assert lines(code, MODEL, library) == [*["True"] * 5, "(1, 8)", "0 (1, 8)"]


# Devices by name.


def test_devices_are_named_by_provider_and_type(tmp_path: Path, expected: np.ndarray) -> None:
    library = plugins.build(tmp_path, DEVICES=2, PROVIDER="My_OwnExecutionProvider.SPECIAL")
    with plugins.registered(library):
        devices = ["my_own.special:CPU", "My_Own.SPECIAL:cpu.1", "my_own.special:CPU.0", "cpu"]
        with ortmulti.create_sessions(MODEL, devices, provider_options={"key": 1}) as sessions:
            first, second = "my_own.special:CPU", "my_own.special:CPU.1"
            assert sessions.devices == [first, second, first, "cpu"]
            assert sessions[0].get_provider_options()["My_OwnExecutionProvider.SPECIAL"] == {"key": "1"}
            for session in sessions:
                np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
        with pytest.raises(ortmulti.DeviceError, match=f"no my_own.special:CPU.2: the plug-ins have {first}, {second}"):
            ortmulti.create_sessions(MODEL, "my_own.special:CPU.2")
        with pytest.raises(ortmulti.DeviceError, match=r"there is no my_own\.special:NPU"):
            ortmulti.load(MODEL, ["cpu", "my_own.special:NPU"])
    with pytest.raises(ortmulti.DeviceError, match=f"no {first}: no plug-in has a device here; install a package with"):
        ortmulti.parse_devices(first)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "meant"),
    [("faek:CPU", "fake:CPU"), ("opnevino:cpu.1", "openvino:CPU"), ("OpenVINOExecutionProvider:GPU", "openvino:GPU")],
)
def test_a_device_of_an_unknown_provider_names_the_nearest_one(name: str, meant: str) -> None:
    with pytest.raises(ortmulti.DeviceError, match=rf"no .* \(did you mean '{meant}'\?\): .*; install a package"):
        ortmulti.parse_devices(name)


@pytest.mark.usefixtures("plugin")
def test_a_pool_has_them_beside_the_cpu(expected: np.ndarray) -> None:
    with ortmulti.load(MODEL, ["fake:CPU", "cpu"], 2, warmup=True) as pool:
        assert pool.devices == ["fake:CPU", "fake:CPU", "cpu", "cpu"]
        for device in ("fake:CPU", "cpu"):
            np.testing.assert_array_equal(pool.submit(None, {"x": X}, device=device).result()[0], expected)
        assert {stats.device: (stats.sessions, stats.done) for stats in pool.stats().devices} == {
            "fake:CPU": (2, 1),
            "cpu": (2, 1),
        }
        assert 'device="fake:CPU"' in pool.stats().prometheus()
        assert pool.wait_ready(devices="FAKE:cpu") == ["fake:CPU"]
        pool.remove_devices("fake:CPU")
        assert pool.devices == ["cpu", "cpu"]
        pool.add_devices("fake:CPU")
        np.testing.assert_array_equal(pool.submit(None, {"x": X}, device="fake:CPU").result()[0], expected)
        assert "fake:CPU" in {span.device for span in pool.timeline.spans}


@pytest.mark.usefixtures("plugin")
def test_sessions_of_a_device_are_one_unless_native() -> None:
    def created(**loading: Any) -> int:
        devices = ["fake:CPU"] * 3 + ["cpu"] * 2
        with ortmulti.create_sessions(MODEL, devices, loading=ortmulti.Loading(**loading)) as sessions:
            return sum(span.name == "create session" for span in sessions.timeline.spans)

    assert created() == 2
    assert created(strategy="native") == 5


def test_options_of_one_provider_at_a_time() -> None:
    with pytest.raises(ortmulti.InvalidArgument, match="the devices are of cuda and fake: leave them out, or call"):
        ortmulti.create_sessions(MODEL, ["cuda:0", "fake:CPU"], provider_options={"key": "value"})


def test_comparisons_diagnoses_and_tunings_do_not_take_them(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(MODEL)
    for call in (
        lambda: ortmulti.tune(str(model), "latency", devices="fake:CPU"),
        lambda: ortmulti.diagnose(str(model), devices="fake:CPU"),
        lambda: parse_devices("cpu,fake:CPU"),
    ):
        with pytest.raises(ortmulti.NotImplemented, match="the plug-in's device fake:CPU: use `load`"):
            call()


def test_an_installed_package_is_registered_by_its_devices_name(library: Path, tmp_path: Path) -> None:
    plugins.plugin_package(tmp_path, "onnxruntime_ep_fa_ke", library, PROVIDER)
    code = """
        sys.path.append(sys.argv[2])
        with om.create_sessions(model, ["fake:CPU"] * 2, loading=om.Loading(optimize="never")) as sessions:
            print(sessions.devices, "onnxruntime" in sys.modules)
        om.unregister_execution_provider_library("FakeExecutionProvider")
    """
    assert lines(code, MODEL, tmp_path) == ["['fake:CPU', 'fake:CPU'] False"]
    (tmp_path / "onnxruntime_ep_fa_ke" / "__init__.py").write_text("raise ImportError('libtoo.so is missing')")
    child = run_child(
        "import sys, ortmulti; sys.path.append(sys.argv[1]); ortmulti.parse_devices('fake:CPU')", tmp_path
    )
    assert "LibraryError: the package onnxruntime_ep_fa_ke cannot be used as a plug-in" in child.stderr
    assert "libtoo.so is missing" in child.stderr


def test_threads_that_load_at_once_register_a_package_once(library: Path, tmp_path: Path) -> None:
    plugins.plugin_package(tmp_path, "onnxruntime_ep_fake", library, PROVIDER)
    code = """
        import sys, ortmulti
        from tests.support.pools import in_threads
        sys.path.append(sys.argv[1])
        print(*in_threads(4, lambda _: len(ortmulti.parse_devices("fake:CPU"))))
    """
    assert check_child(code, tmp_path) == "1 1 1 1\n"


def test_a_plugin_without_hardware_is_registered_once_and_is_said(tmp_path: Path) -> None:
    plugins.plugin_package(tmp_path, "onnxruntime_ep_fake", plugins.build(tmp_path, DEVICES=0), PROVIDER)
    code = """
        sys.path.append(sys.argv[2])
        if by_path := sys.argv[3]:
            om.register_execution_provider_library("mine", by_path)
        for _ in range(2):
            print(error_of(om.parse_devices, "fake:CPU"))
    """
    for by_path, name in (("", PROVIDER), (tmp_path / "libfake_plugin.so", "mine")):
        message = (
            "DeviceError: there is no fake:CPU: no plug-in has a device here; no hardware here is supported by the "
            f"registered {name!r}; name another device, such as 'cpu'"
        )
        assert lines(code, MODEL, tmp_path, by_path) == 2 * [message]


def test_a_package_is_not_registered_beside_its_provider(library: Path, tmp_path: Path) -> None:
    plugins.plugin_package(tmp_path, "onnxruntime_ep_fake", library, PROVIDER)
    code = """
        sys.path.append(sys.argv[2])
        om.register_execution_provider_library("mine", sys.argv[3])
        print(error_of(om.parse_devices, "fake:GPU"))
    """
    message = "DeviceError: there is no fake:GPU: the plug-ins have fake:CPU; name another device, such as 'cpu'"
    assert lines(code, MODEL, tmp_path, shutil.copy(library, tmp_path / "copy.so")) == [message]


# CUDA as a plug-in: none can be had yet, so a fake one stands for it, and a fake driver for the GPU's.


@pytest.fixture
def cuda_package(tmp_path: Path) -> dict[str, str]:
    """A package with CUDA's plug-in, and the environment of processes that find it, with a driver of three GPUs."""
    package = tmp_path / "onnxruntime_ep_cuda13"
    library = package / "libonnxruntime_providers_cuda.so"
    plugins.plugin_package(tmp_path, package.name, library, CUDA)
    plugins.build(tmp_path, PROVIDER=CUDA, DEVICES=2, NUMBERED=1).rename(library)
    [commit] = re.findall(r"git-commit-id=(\w+)", ortmulti.get_build_info())
    (package / "_build_info.py").write_text(f'BUILD_COMMIT = "{commit}0123"\n')
    return {**fake_driver.build(tmp_path).environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}


def test_gpus_use_the_plugin_where_no_cuda_provider_is_built_in(cuda_package: dict[str, str]) -> None:
    code = """
        print(om.get_available_providers())
        with om.create_sessions(model, ["cuda:1", "cpu", "cuda:0"], loading=om.Loading(optimize="never")) as sessions:
            print(sessions.devices, sessions[0].get_providers())
            print(np.array_equal(*(session.run(None, {"x": x})[0] for session in sessions[:2])))
            print(sorted(device._name for device in om.get_ep_devices()))
            print(error_of(om.unregister_execution_provider_library, "CUDAExecutionProvider"))
        om.unregister_execution_provider_library("CUDAExecutionProvider")
        gpu = om.InferenceSession(model, providers=["CUDAExecutionProvider"])
        print(gpu.device, gpu.get_providers())
        for device in ("cuda:2", "cuda:GPU"):
            print(error_of(om.create_sessions, model, device, loading=om.Loading(optimize="never")))
    """
    assert lines(code, MODEL, environment=cuda_package) == [
        "['CUDAExecutionProvider', 'AzureExecutionProvider', 'CPUExecutionProvider']",
        "['cuda:1', 'cpu', 'cuda:0'] ['CUDAExecutionProvider', 'CPUExecutionProvider']",
        "True",
        "['', 'cuda:0', 'cuda:1']",
        "Fail: [ONNXRuntimeError] : 1 : FAIL : unregistering the execution providers of 'CUDAExecutionProvider': 2 "
        "sessions use its devices; close them first",
        "cuda:0 ['CUDAExecutionProvider', 'CPUExecutionProvider']",
        "DeviceError: creating a session of a model of 710 bytes on cuda:2: there is no device cuda:2: the registered "
        "plug-ins have cuda:0, cuda:1; name one of them",
        "DeviceError: there is no cuda:GPU: the plug-ins have cuda:0, cuda:1; name another device, such as 'cpu'",
    ]


RELEASE = ".".join(ortmulti.get_version_string().split(".")[:2])


@pytest.mark.parametrize(
    ("build_info", "version", "said"),
    [
        ('BUILD_COMMIT = "0123456789abcdef"', "9.9.0", "9.9.0, of revision 0123456789) and ONNX Runtime"),
        (None, "9.9.0", "9.9.0) and ONNX Runtime"),
        (None, None, "libonnxruntime_providers_cuda.so) and ONNX Runtime"),
        ('BUILD_COMMIT = "0123456789abcdef"', "0.4.0", "" if RELEASE == "1.32" else "0.4.0, of revision"),
    ],
)
def test_a_cuda_plugin_of_another_revision_is_warned_of_once(
    build_info: str | None, version: str | None, said: str, cuda_package: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "onnxruntime_ep_cuda13" / "_build_info.py"
    file.write_text(build_info) if build_info else file.unlink()
    if version:
        (tmp_path / f"onnxruntime_ep_cuda13-{version}.dist-info").mkdir()
    code = """
        import logging
        said = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())
        logging.getLogger("ortmulti").addHandler(handler)
        for ways in range(2):
            om.create_sessions(model, "cuda:0", loading=om.Loading(optimize="never")).close()
            om.InferenceSession(model, providers=["CUDAExecutionProvider"]).close()
        om.unregister_execution_provider_library("CUDAExecutionProvider")
        om.register_execution_provider_library("mine", sys.argv[2])
        print(len(said), *said)
    """
    [line] = lines(code, MODEL, file.with_name("libonnxruntime_providers_cuda.so"), environment=cuda_package)
    number, _, text = line.partition(" ")
    assert number == ("1" if said else "0")
    assert said in text
    assert ("#32855" in text) == bool(said)
