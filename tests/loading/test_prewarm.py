"""CUDA started in the background, and the word on GPUs that are not used."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import ortmulti
from ortmulti import Device, _core
from ortmulti.loading import prewarm
from tests.support import fake_driver, onnx_models
from tests.support import gpus as _gpus
from tests.support.processes import check_child, nothing_leaks

without_driver = pytest.mark.skipif(_core.cuda_driver_version() is not None, reason="there is a CUDA driver")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.matmul())
    return path


@without_driver
@pytest.mark.parametrize("devices", ["all", "cpu", ["cpu", "cuda:7"], 3, [Device("cuda", 1), "cuda"]])
def test_without_nvidia_hardware_it_does_nothing(devices: object) -> None:
    with nothing_leaks():
        ortmulti.prewarm(devices)
        ortmulti.prewarm(devices, model=onnx_models.matmul())


def test_a_model_that_does_not_exist_is_an_error_at_once() -> None:
    with pytest.raises(ortmulti.NoSuchFile, match=r"no\.onnx"):
        ortmulti.prewarm("cpu", model="no.onnx")


def test_for_the_cpu_it_does_nothing() -> None:
    code = """
        import os
        import ortmulti

        before = os.listdir("/proc/self/task")
        ortmulti.prewarm("cpu")
        ortmulti.prewarm(["cpu", ortmulti.Device("cpu")])
        print(ortmulti._core.is_library_open(), os.listdir("/proc/self/task") == before)
    """
    assert check_child(code, environment=_gpus.VISIBLE) == "False True\n"


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        (1.5, ortmulti.InvalidType, "devices is 'all', a device or an iterable"),
        ([None], ortmulti.InvalidType, "a device is 'cpu', 'cuda:N', N or 'openvino:CPU'"),
        ([], ortmulti.InvalidArgument, "devices is empty"),
        ("tpu:0", ortmulti.InvalidArgument, "tpu:0"),
        (-1, ortmulti.InvalidArgument, "0 or more"),
    ],
)
def test_devices_that_cannot_be_understood_are_refused_at_once(
    devices: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ortmulti.prewarm(devices)


@pytest.fixture
def hints(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(prewarm, "_said", False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    caplog.set_level(logging.INFO, logger="ortmulti")
    return caplog


def gpus(*indices: int) -> list[Device]:
    return [Device("cuda", index) for index in indices]


@pytest.mark.parametrize(
    ("used", "visible", "current", "proposed"),
    [
        (gpus(0), 4, None, "0"),
        (gpus(3, 2, 3), 8, None, "2,3"),
        ([Device("cpu"), *gpus(1, 0)], 4, "4,5,6,7", "4,5"),
        (gpus(2), 4, "GPU-a, GPU-b,GPU-c ,GPU-d", "GPU-c"),
    ],
)
def test_many_unused_gpus_are_worth_a_hint(
    hints: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    used: list[Device],
    visible: int,
    current: str | None,
    proposed: str,
) -> None:
    if current is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", current)
    prewarm.hint_at_unused_gpus(used, visible)
    prewarm.hint_at_unused_gpus(used, visible)
    [record] = hints.records
    assert (record.name, record.levelno) == ("ortmulti", logging.INFO)
    assert f"sees {visible} GPUs and uses {len(set(used) - {Device('cpu')})}" in record.getMessage()
    assert f"CUDA_VISIBLE_DEVICES={proposed} " in record.getMessage()


@pytest.mark.parametrize(
    ("used", "visible"),
    [(gpus(0, 1, 2), 4), (gpus(0), 3), (gpus(*range(5)), 8), ([Device("cpu")], 8), ([], 8)],
)
def test_a_few_unused_gpus_are_not(hints: pytest.LogCaptureFixture, used: list[Device], visible: int) -> None:
    prewarm.hint_at_unused_gpus(used, visible)
    assert hints.records == []


def test_a_hint_that_nobody_reads_is_kept_for_later(hints: pytest.LogCaptureFixture) -> None:
    hints.set_level(logging.WARNING, logger="ortmulti")
    prewarm.hint_at_unused_gpus(gpus(0), 8)
    hints.set_level(logging.INFO, logger="ortmulti")
    prewarm.hint_at_unused_gpus(gpus(0), 8)
    assert len(hints.records) == 1


PREWARMED = """
    import sys, threading, time
    import ortmulti

    begin = time.monotonic_ns()
    ortmulti.prewarm({devices})
    with ortmulti.load(sys.argv[1], [0]) as pool:
        spans = pool.timeline.spans
    starts = [span for span in spans if span.name == "cuInit"]
    assert len(starts) == 1, spans
    assert begin <= starts[0].start_ns, "started before it was asked for"
    assert starts[0].thread != threading.get_native_id(), "prewarm waited for the driver"
    contexts = [span.device for span in spans if span.name == "context"]
    print(*contexts)
"""


@pytest.mark.gpu
def test_a_load_joins_the_start_that_is_under_way(model: Path) -> None:
    printed = check_child(PREWARMED.format(devices="[0]"), model, environment=_gpus.VISIBLE, timeout=120)
    assert printed == "cuda:0\n"


@pytest.mark.gpu
def test_a_prewarmed_process_ends_cleanly_without_a_load() -> None:
    check_child("import ortmulti; ortmulti.prewarm()", environment=_gpus.VISIBLE, timeout=120)
    code = """
        import ortmulti, time
        ortmulti.prewarm(0)
        while not ortmulti._core.cuda_has_context(0):
            time.sleep(0.001)
    """
    check_child(code, environment=_gpus.VISIBLE, timeout=120)


@pytest.mark.gpu
def test_a_device_that_does_not_exist_is_reported_by_the_load(model: Path) -> None:
    code = """
        import sys
        import ortmulti

        ortmulti.prewarm(99)
        for devices in (99, 0):
            try:
                with ortmulti.load(sys.argv[1], devices) as pool:
                    print(pool.devices)
            except ortmulti.DeviceError as error:
                print(str(error).split(":")[0:2])
    """
    printed = check_child(code, model, environment=_gpus.VISIBLE, timeout=120)
    assert printed == "['there is no cuda', '99']\n['cuda:0']\n"


@pytest.mark.gpu
def test_a_load_on_one_of_many_gpus_gives_the_hint(model: Path) -> None:
    _gpus.needs_gpus(4)
    code = """
        import logging, sys
        import ortmulti

        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(message)s")
        logging.getLogger("ortmulti.onnxruntime").setLevel(logging.ERROR)
        for _ in range(2):
            ortmulti.load(sys.argv[1], 1).close()
    """
    lines = check_child(code, model, environment=_gpus.VISIBLE, timeout=120).splitlines()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    assert len(lines) == 1
    assert f"CUDA_VISIBLE_DEVICES={visible[1]} " in lines[0]


STARTED = """
    import sys
    import ortmulti
    from ortmulti import _core

    begun, begin = [], _core.prewarm

    def prewarm(gpus):
        begun.append((gpus, "ortmulti.devices.device" in sys.modules, _core.is_library_open()))
        begin(gpus)

    _core.prewarm = prewarm
    try:
        {call}
    except ortmulti.Error:
        pass  # this ONNX Runtime, or this machine, has no GPU
    print(begun[:1])
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("call", "begun"),
    [
        ("ortmulti.load(sys.argv[1])", "[(None, False, False)]"),
        ("ortmulti.load(sys.argv[1], [1, 'cuda:0'], in_flight=1)", "[([1, 0], False, False)]"),
        ("ortmulti.create_sessions(sys.argv[1], 2)", "[([2], False, False)]"),
        ("ortmulti.prewarm('cuda:1', model=sys.argv[1])", "[([1], False, False)]"),
        # Its class needs most modules, but ONNX Runtime is opened afterwards.
        ("ortmulti.InferenceSession(sys.argv[1], providers=['CUDAExecutionProvider'])", "[([0], True, False)]"),
        # What may be wrong is checked first.
        ("ortmulti.create_sessions(sys.argv[1], 2, options=ortmulti.SessionOptions())", "[([2], True, False)]"),
        ("ortmulti.load(sys.argv[1], 2, loading=ortmulti.Loading(reader_threads=2))", "[([2], True, False)]"),
        ("ortmulti.load(sys.argv[1], 0, loading=3)", "[]"),
        ("ortmulti.load(sys.argv[1], ortmulti.Device('cuda', 1))", "[([1], True, False)]"),
        ("ortmulti.load(sys.argv[1], [0, -1])", "[]"),
        ("ortmulti.load(sys.argv[1], 'cuda:99999999999999999999')", "[]"),
        ("ortmulti.load(sys.argv[1], 0, 0)", "[]"),
        ("ortmulti.load('no.onnx', 0)", "[]"),
        ("ortmulti.load(sys.argv[1], 0, loading=ortmulti.Loading(optimize='maybe'))", "[]"),
        ("ortmulti.create_sessions(sys.argv[1], 0, progress=1)", "[]"),
        ("ortmulti.prewarm(0, model='no.onnx')", "[]"),
        ("ortmulti.load(sys.argv[1], 'cpu')", "[]"),
    ],
)
def test_the_driver_starts_before_other_modules_are_imported(model: Path, call: str, begun: str) -> None:
    driver = fake_driver.build(model.parent)
    assert check_child(STARTED.format(call=call), model, environment=driver.environment) == begun + "\n"
