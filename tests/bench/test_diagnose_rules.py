"""From what was measured to findings and predictions, and arguments that mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import diagnose_prediction
from ortmulti.bench.diagnose.conclusions import conclude
from ortmulti.bench.diagnose.diagnosis import diagnose, publishable
from ortmulti.bench.measure.rounds import Interval
from ortmulti.errors import InvalidArgument
from tests.support import onnx_models
from tests.support.diagnosis import GPUS, document, experiment, found, from_a_cold_disk, heartbeat, run


def test_the_issues_sentence() -> None:
    of = document(
        run("sequential", 5.7),
        run("threads", 5.7 / 1.04),
        run("shared", 1.0),
        heartbeat("onnxruntime", 0.91),
        release="1.30.0",
    )
    [first, *_] = conclude(of)
    assert first.title == (
        "threads are 1.04x as fast as sequential: onnxruntime 1.30.0 holds the GIL for 91% of creation; with strategy "
        "shared 5.7x (measured)"
    )
    assert first.seconds == pytest.approx(4.7)
    assert first.command == 'ortmulti.load("model.onnx", ["cuda:0", "cuda:1"])'


def test_commands_have_the_path_that_the_user_gave_and_what_is_published_has_not() -> None:
    of = document(run("sequential", 5.7), run("shared", 1.0))
    of["models"][0]["given"] = "../some folder/model.onnx"
    [first, *_] = conclude(of)
    assert first.command == 'ortmulti.load("../some folder/model.onnx", ["cuda:0", "cuda:1"])'
    [public, *_] = publishable(of, Path("../some folder/model.onnx"))["findings"]
    assert public["command"] == 'ortmulti.load("model.onnx", ["cuda:0", "cuda:1"])'


def test_a_heartbeat_that_waited_for_a_core_does_not_accuse_the_gil() -> None:
    of = document(
        run("sequential", 4.0), run("threads", 4.0), run("shared", 1.0), heartbeat("onnxruntime", 0.9, for_core=0.8)
    )
    assert found(of)[0] == "strategy"


def test_what_each_way_serializes() -> None:
    of = document(
        run("sequential", 1.0, GPUS[:1]),
        run("sequential", 2.0),
        run("threads", 1.0, GPUS[:1]),
        run("threads", 1.25, causes={"cuInit": 0.5, "context": 0.25, "wait for another session": 0.2}),
        experiment("contexts", {"driver_floor": 0.7, "cuInit": 0.5, "contexts": [0.1, 0.1]}, at_once=False),
        experiment("contexts", {"cuInit": 0.5, "at_once": 0.2, "contexts": [0.1, 0.2]}, at_once=True),
        heartbeat("onnxruntime", 0.1),
    )
    first = conclude(of)[0]
    assert (
        first.command
        == '[onnxruntime.InferenceSession("model.onnx") for each of ["cuda:0", "cuda:1"], each in a thread]'
    )
    sequential, threads = of["serialization"]
    assert (sequential["way"], sequential["speedup"], sequential["serial"]) == ("sequential", 1.0, 1.0)
    assert (threads["speedup"], threads["ideal"], threads["serial"]) == (pytest.approx(1.6), 2.0, pytest.approx(0.25))
    shares = {part["what"]: part["share"] for part in threads["on"]}
    assert shares == {
        "gil": pytest.approx(0.1),
        "driver": pytest.approx(0.6),
        "onnxruntime": pytest.approx(0.16),
    }
    assert of["prediction"]["best"] == "threads"


def test_nothing_to_gain() -> None:
    of = document(run("sequential", 1.0), run("threads", 0.99), run("shared", 1.5))
    [only] = conclude(of)
    assert only.id == "nothing"
    assert only.title.startswith("nothing to gain: sequential creates the sessions on cuda:0, cuda:1 in 1.00 s")
    assert only.as_json()["verified"] is None


def test_without_any_run_there_is_no_finding() -> None:
    of = document()
    assert conclude(of) == []
    assert (of["serialization"], of["prediction"], of["findings"]) == ([], None, [])


@pytest.mark.parametrize(("chosen", "expected"), [(None, True), ("EXHAUSTIVE", True), ("HEURISTIC", False)])
def test_the_search_for_algorithms(chosen: str | None, expected: bool) -> None:
    of = document(run("sequential", 1.0, causes={"algorithm search": 0.4}))
    if chosen is not None:
        of["settings"]["session"] = {"provider_options": {"cudnn_conv_algo_search": chosen}}
    assert (found(of)[0] == "algorithm search") == expected


def test_gpus_that_are_not_used() -> None:
    driver = experiment("contexts", {"driver_floor": 2.5, "cuInit": 2.2, "contexts": [0.3]}, at_once=False)
    alone = experiment("visible", {"driver_floor": 0.6, "cuInit": 0.3, "contexts": [0.3]})
    of = document(run("sequential", 4.0), driver, alone, visible=8)
    [first, *_] = conclude(of)
    assert first.id == "visible devices"
    assert (first.seconds, first.share) == pytest.approx((1.9, 0.475))
    assert first.command == "CUDA_VISIBLE_DEVICES=0,1"
    assert "visible devices" not in found(document(run("sequential", 4.0), driver, alone, visible=2))


def test_modules_that_are_loaded_at_once() -> None:
    slow = run("sequential", 4.0, causes={"libraries": 3.0})
    assert found(document(slow, variables={"CUDA_MODULE_LOADING": "EAGER"}))[0] == "module loading"
    assert "module loading" not in found(document(slow, variables={"CUDA_MODULE_LOADING": "LAZY"}))


def test_processes_that_would_be_the_best() -> None:
    def processes(starting: float) -> dict[str, Any]:
        span = {"cause": "processes", "name": "start", "start": 0.1, "end": 0.1 + starting}
        return run("processes", 1.0, spans=[span])

    of = document(run("sequential", 0.9), processes(0.6))
    [first, *_] = conclude(of)
    assert first.id == "processes"
    assert first.seconds == pytest.approx(0.5)
    assert "processes" not in found(document(run("sequential", 0.9), processes(0.2)))


@pytest.mark.parametrize(
    ("external", "command"),
    [
        ([], "cat -- 'a model.onnx' > /dev/null"),
        (["a model.onnx.data"], "cat -- 'a model.onnx' 'a model.onnx.data' > /dev/null"),
        (["weights/1.bin", "2.bin"], "cat -- 'a model.onnx' weights/1.bin 2.bin > /dev/null"),
    ],
)
def test_a_cold_disks_command_reads_every_file(external: list[str], command: str) -> None:
    of = from_a_cold_disk(run("sequential", 1.0))
    of["models"][0] |= {"path": "a model.onnx", "external": external}
    first = conclude(of)[0]
    assert first.id == "cold disk"
    assert first.seconds == pytest.approx(9.0)
    assert first.command == command


@pytest.mark.parametrize(
    ("external", "command"),
    [
        (["model.onnx.data"], "cp -- models/model.onnx models/model.onnx.data /dev/shm/"),
        (["weights/1.bin"], "cd -- models && cp --parents -- model.onnx weights/1.bin /dev/shm/"),
        (["-t/x"], "cd -- models && cp --parents -- model.onnx -t/x /dev/shm/"),
    ],
)
def test_a_slow_disks_command_copies_every_file(external: list[str], command: str) -> None:
    span = {"cause": "read weights", "name": "read", "start": 0.5, "end": 2.5, "cpu": 0.1}
    span |= {"session": 0, "device": "cuda:0"}
    slow = run("sequential", 3.0, causes={"read weights": 2.0}, spans=[span])
    of = document(slow, experiment("disk", {"bytes": 10**9, "seconds": 2.0}, cache="warm"))
    of["models"][0] |= {"path": "models/model.onnx", "external": external}
    first = conclude(of)[0]
    assert (first.id, first.command) == ("slow disk", command)


def test_a_busy_and_slow_machine_is_noted_and_not_first() -> None:
    gpu = {
        "device": "cuda:0",
        "persistence_mode": True,
        "clock": 345,
        "clock_max": 1980,
        "clock_limit": 1000,
        "slowed_by": ["heat"],
        "utilization": 90,
        "processes": 2,
    }
    around = {"cores": 4, "busy_cores": 3.1, "governor": "powersave", "gpus": [gpu]}
    names = found(document(run("sequential", 4.0), run("shared", 1.0), environment=around))
    assert names[0] == "strategy"
    assert set(names[1:]) == {"busy cores", "governor", "busy GPUs", "clocks"}
    quiet = {**around, "busy_cores": 0.2, "governor": "performance"}
    quiet["gpus"] = [{**gpu, "slowed_by": [], "clock_limit": 1980, "processes": 0}]
    assert found(document(run("sequential", 4.0), run("shared", 1.0), environment=quiet)) == ["strategy"]


def test_more_sessions_than_cores() -> None:
    cpus = ("cpu",) * 4
    of = document(run("sequential", 1.0, cpus), devices=cpus, environment={"cores": 2})
    assert "cores" in found(of)


@pytest.mark.parametrize(
    "arguments",
    [
        {"ways": ()},
        {"ways": ("quickest",)},
        {"ways": ("native", "native")},
        {"devices": ("gpu",)},
        {"devices": ()},
        {"budget": 0.0},
        {"budget": float("nan")},
        {"timeout": -1.0},
        {"repeat": 0},
        {"batch": 0},
        {"sequence": 0},
        {"settings": {"threads": 2}},
    ],
)
def test_arguments_that_mean_nothing(tmp_path: Path, arguments: dict[str, Any]) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.identity())
    with pytest.raises(InvalidArgument):
        diagnose(model, **{"devices": "cpu", **arguments})


def test_when_a_prediction_agrees() -> None:
    def interval(low: float, median: float) -> Interval:
        return Interval(median, low, 2.0, low, 2.0, 0.95)

    ready = {"shared": interval(0.9, 1.0), "threads": interval(1.2, 1.4), "native": interval(0.95, 1.2)}
    assert diagnose_prediction.agrees("shared", ready)
    assert diagnose_prediction.agrees("native", ready)  # it may be as fast
    assert not diagnose_prediction.agrees("threads", ready)
    assert not diagnose_prediction.agrees("processes", ready)


def test_the_quantized_model_runs(tmp_path: Path) -> None:
    session = onnx_models.cpu_session(diagnose_prediction.quantized(tmp_path, size=64, layers=3))
    [y] = session.run(None, {"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)})
    assert y.shape == (2, 64)
    assert 0.01 < np.abs(y).mean() < 10
