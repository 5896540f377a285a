"""From what was measured to findings and predictions, and arguments that mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import diagnose_prediction
from ortmulti.bench.diagnose.diagnosis import publishable
from ortmulti.bench.diagnose.findings import conclude
from ortmulti.bench.measure.rounds import Interval
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


def algorithms(**options: str) -> dict[str, Any]:
    of = document(run("sequential", 1.0, causes={"algorithm search": 0.4}))
    of["settings"]["session"] = {"provider_options": options}
    return of


def gpus(visible: int) -> dict[str, Any]:
    """A document of two GPUs, whose driver starts sooner if they are the only ones."""
    driver = experiment("contexts", {"driver_floor": 2.5, "cuInit": 2.2, "contexts": [0.3]}, at_once=False)
    return document(run("sequential", 4.0), driver, experiment("visible", {"driver_floor": 0.6}), visible=visible)


def loading(value: str) -> dict[str, Any]:
    slow = run("sequential", 4.0, causes={"libraries": 3.0})
    return document(slow, variables={"CUDA_MODULE_LOADING": value})


def processes(starting: float) -> dict[str, Any]:
    span = {"cause": "processes", "name": "start", "start": 0.1, "end": 0.1 + starting}
    return document(run("sequential", 0.9), run("processes", 1.0, spans=[span]))


def crowded(cores: int) -> dict[str, Any]:
    cpus = ("cpu",) * 4
    return document(run("sequential", 1.0, cpus), devices=cpus, environment={"cores": cores})


def cold_disk(*external: str) -> dict[str, Any]:
    of = from_a_cold_disk(run("sequential", 1.0))
    of["models"][0] |= {"path": "a model.onnx", "external": list(external)}
    return of


def slow_disk(*external: str) -> dict[str, Any]:
    span = {"cause": "read weights", "name": "read", "start": 0.5, "end": 2.5, "cpu": 0.1}
    span |= {"session": 0, "device": "cuda:0"}
    slow = run("sequential", 3.0, causes={"read weights": 2.0}, spans=[span])
    of = document(slow, experiment("disk", {"bytes": 10**9, "seconds": 2.0}, cache="warm"))
    of["models"][0] |= {"path": "models/model.onnx", "external": list(external)}
    return of


HEURISTIC = "provider_options={'cudnn_conv_algo_search': 'HEURISTIC'}"


@pytest.mark.parametrize(
    ("of", "name", "seconds", "command"),
    [
        (algorithms(), "algorithm search", 0.4, HEURISTIC),
        (algorithms(cudnn_conv_algo_search="EXHAUSTIVE"), "algorithm search", 0.4, HEURISTIC),
        (gpus(8), "visible devices", 1.9, "CUDA_VISIBLE_DEVICES=0,1"),
        (loading("EAGER"), "module loading", 3.0, "CUDA_MODULE_LOADING=LAZY"),
        (processes(0.6), "processes", 0.5, None),
        (cold_disk(), "cold disk", 9.0, "cat -- 'a model.onnx' > /dev/null"),
        (cold_disk("b/1.bin", "2"), "cold disk", 9.0, "cat -- 'a model.onnx' b/1.bin 2 > /dev/null"),
        (slow_disk("data"), "slow disk", 1.9, "cp -- models/model.onnx models/data /dev/shm/"),
        (slow_disk("-t/x"), "slow disk", 1.9, "cd -- models && cp --parents -- model.onnx -t/x /dev/shm/"),
    ],
)
def test_what_costs_time_is_the_first_finding(of: dict[str, Any], name: str, seconds: float, command: str) -> None:
    first = conclude(of)[0]
    assert (first.id, first.command) == (name, command)
    assert first.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (algorithms(cudnn_conv_algo_search="HEURISTIC"), "algorithm search"),
        (gpus(2), "visible devices"),
        (loading("LAZY"), "module loading"),
        (processes(0.2), "processes"),
        (crowded(4), "cores"),
    ],
)
def test_what_costs_no_time_is_no_finding(of: dict[str, Any], name: str) -> None:
    assert name not in found(of)
    assert "cores" in found(crowded(2))


def test_a_busy_and_slow_machine_is_noted_and_not_first() -> None:
    clocks = {"clock": 345, "clock_max": 1980, "clock_limit": 1000, "slowed_by": ["heat"]}
    gpu = {"device": "cuda:0", "persistence_mode": True, "utilization": 90, "processes": 2, **clocks}
    around = {"cores": 4, "busy_cores": 3.1, "governor": "powersave", "gpus": [gpu]}
    names = found(document(run("sequential", 4.0), run("shared", 1.0), environment=around))
    assert names[0] == "strategy"
    assert set(names[1:]) == {"busy cores", "governor", "busy GPUs", "clocks"}
    quiet = {**around, "busy_cores": 0.2, "governor": "performance"}
    quiet["gpus"] = [{**gpu, "slowed_by": [], "clock_limit": 1980, "processes": 0}]
    assert found(document(run("sequential", 4.0), run("shared", 1.0), environment=quiet)) == ["strategy"]


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
