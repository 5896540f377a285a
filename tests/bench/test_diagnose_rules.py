"""From what was measured to findings and predictions; and what becomes of findings whose changes are run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import diagnose_prediction, graphs
from ortmulti.bench.diagnose.bench import Bench, verify
from ortmulti.bench.diagnose.diagnosis import compiled_kernels, driver, look, publishable
from ortmulti.bench.diagnose.findings import conclude
from ortmulti.bench.measure.rounds import Interval
from ortmulti.devices import nvml
from tests.support import fake_driver, onnx_models
from tests.support.diagnosis import GPUS, WAYS, document, experiment, found, from_a_cold_disk, heartbeat, run
from tests.support.fake_nvml import FakeNvml


def test_the_issues_sentence() -> None:
    """With a command that has the path which the user gave; what is published has not."""
    of = document(
        run("sequential", 5.7),
        run("threads", 5.7 / 1.04),
        run("shared", 1.0),
        heartbeat("onnxruntime", 0.91),
        release="1.30.0",
    )
    of["models"][0]["given"] = "../some folder/model.onnx"
    [first, *_] = conclude(of)
    assert first.title == (
        "threads are 1.04x as fast as sequential: onnxruntime 1.30.0 holds the GIL for 91% of creation; with strategy "
        "shared 5.7x (measured)"
    )
    assert first.seconds == pytest.approx(4.7)
    assert first.command == 'ortmulti.load("../some folder/model.onnx", ["cuda:0", "cuda:1"])'
    [public, *_] = publishable(of, Path("../some folder/model.onnx"))["findings"]
    assert public["command"] == 'ortmulti.load("model.onnx", ["cuda:0", "cuda:1"])'


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
    assert (sequential["way"], sequential["speedup"]) == ("sequential", 1.0)
    assert (threads["speedup"], threads["ideal"]) == (pytest.approx(1.6), 2.0)
    shares = {part["what"]: part["share"] for part in threads["on"]}
    assert shares == {
        "gil": pytest.approx(0.1),
        "driver": pytest.approx(0.6),
        "onnxruntime": pytest.approx(0.16),
    }
    assert of["prediction"]["best"] == "threads"


def held_for_a_core() -> dict[str, Any]:
    """A heartbeat that waited for a core, which does not accuse the GIL."""
    beat = heartbeat("onnxruntime", 0.9, for_core=0.8)
    return document(run("sequential", 4.0), run("threads", 4.0), run("shared", 1.0), beat)


def algorithms(**options: str) -> dict[str, Any]:
    of = document(run("sequential", 1.0, causes={"algorithm search": 0.4}))
    of["settings"]["session"] = {"provider_options": options}
    return of


def gpus(visible: int) -> dict[str, Any]:
    """A document of two GPUs, whose driver starts sooner if they are the only ones."""
    start = experiment("contexts", {"driver_floor": 2.5, "cuInit": 2.2, "contexts": [0.3]}, at_once=False)
    return document(run("sequential", 4.0), start, experiment("visible", {"driver_floor": 0.6}), visible=visible)


def loading(value: str) -> dict[str, Any]:
    slow = run("sequential", 4.0, causes={"libraries": 3.0})
    return document(slow, variables={"CUDA_MODULE_LOADING": value})


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


def waiting() -> dict[str, Any]:
    span = {"cause": "wait", "name": "make kernels", "start": 0.5, "end": 2.0, "cpu": 0.0, "session": 0, "thread": 7}
    spans = [{**span, "device": "cuda:0", **other} for other in ({"name": "other", "end": 0.6}, {})]
    return document(run("sequential", 3.0, causes={"wait": 1.5}, spans=spans))


def first_runs(searching: float) -> dict[str, Any]:
    """As EfficientNetV2-L on two GPUs, in seconds."""
    shared = run("shared", 0.5, wall=9.0, causes={"algorithm search": searching})
    return document(run("sequential", 0.9), shared, run("processes", 1.2, wall=6.0))


HEURISTIC = "provider_options={'cudnn_conv_algo_search': 'HEURISTIC'}"


@pytest.mark.parametrize(
    ("of", "name", "seconds", "command"),
    [
        (algorithms(), "algorithm search", 0.4, HEURISTIC),
        (algorithms(cudnn_conv_algo_search="EXHAUSTIVE"), "algorithm search", 0.4, HEURISTIC),
        (gpus(8), "visible devices", 1.9, "CUDA_VISIBLE_DEVICES=0,1"),
        (loading("EAGER"), "module loading", 3.0, "CUDA_MODULE_LOADING=LAZY"),
        (
            first_runs(8.0),
            "first runs",
            3.0,
            'for each of ["cuda:0", "cuda:1"], in a process: ortmulti.load("model.onnx", device, share=\'host\')',
        ),
        (cold_disk(), "cold disk", 9.0, "cat -- 'a model.onnx' > /dev/null"),
        (cold_disk("b/1.bin", "2"), "cold disk", 9.0, "cat -- 'a model.onnx' b/1.bin 2 > /dev/null"),
        (waiting(), "wait", 1.5, None),
        (slow_disk("data"), "slow disk", 1.9, "cp -- models/model.onnx models/data /dev/shm/"),
        (slow_disk("-t/x"), "slow disk", 1.9, "cd -- models && cp --parents -- model.onnx -t/x /dev/shm/"),
    ],
)
def test_what_costs_time_is_the_first_finding(of: dict[str, Any], name: str, seconds: float, command: str) -> None:
    first = conclude(of)[0]
    assert (first.id, first.command) == (name, command)
    assert first.seconds == pytest.approx(seconds)
    assert name != "wait" or 'the longest time in "make kernels", thread 7' in first.title


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (algorithms(cudnn_conv_algo_search="HEURISTIC"), "algorithm search"),
        (gpus(2), "visible devices"),
        (loading("LAZY"), "module loading"),
        (first_runs(2.0), "first runs"),
        (held_for_a_core(), "gil"),
    ],
)
def test_what_costs_no_time_is_no_finding(of: dict[str, Any], name: str) -> None:
    assert name not in found(of)


def test_a_busy_and_slow_machine_is_noted_and_not_first() -> None:
    clocks = {"clock": 345, "clock_max": 1980, "clock_limit": 1000, "slowed_by": ["heat"]}
    gpu = {"device": "cuda:0", "persistence_mode": True, "utilization": 90, "processes": 2, **clocks}
    around = {"cores": 4, "busy_cores": 3.1, "governor": "powersave", "gpus": [gpu], "compiled_kernels": 3 * 10**7}
    names = found(document(run("sequential", 4.0), run("shared", 1.0), environment=around))
    assert names[0] == "strategy"
    assert set(names[1:]) == {"busy cores", "governor", "busy GPUs", "clocks", "compiled kernels"}
    quiet = {**around, "busy_cores": 0.2, "governor": "performance", "compiled_kernels": 10**5}
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


def test_the_quantized_model_runs() -> None:
    session = onnx_models.cpu_session(graphs.quantized(size=64, layers=3))
    [y] = session.run(None, {"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)})
    assert y.shape == (2, 64)
    assert 0.01 < np.abs(y).mean() < 10


# --- Verification -----------------------------------------------------------------------------------------------------


class FakeBench(Bench):
    """Its starts take so many seconds, by the page cache and the way, instead of being run."""

    seconds: Mapping[str, Mapping[str, float]]

    def trace(self, way: str, devices: Sequence[str], experiment: str = "trace", **options: Any) -> dict[str, Any]:
        cache = options.get("cache", "warm")
        made = run(way, self.seconds[cache][way], tuple(devices), experiment=experiment, cache=cache)
        self.runs.append(made)
        return made


def bench_of(folder: Path, seconds: Mapping[str, Mapping[str, float]] | None = None, **changes: Any) -> FakeBench:
    model = folder / "model.onnx"
    model.write_bytes(onnx_models.identity())
    usual = {"ways": WAYS, "repeat": 5, "budget": 50.0, "quick": True, "settings": {}, "timeout": 600.0}
    bench = FakeBench(devices=GPUS, progress=lambda *_: None, files=(model,), folder=folder, **{**usual, **changes})
    bench.seconds = seconds or {}
    return bench


def nvml_without_persistence() -> FakeNvml:
    """GPUs without persistence mode: while it is open, the driver below starts at once."""
    slow = os.environ["INIT_MS"]
    return FakeNvml(
        nvmlInit=lambda: os.environ.update(INIT_MS="0"),
        nvmlShutdown=lambda: os.environ.update(INIT_MS=slow),
        nvmlDeviceGetHandleByUUID=SimpleNamespace(),
        nvmlDeviceGetPersistenceMode=0,
        nvmlDeviceIsMigDeviceHandle=0,
        nvmlDeviceGetUUID="GPU-a",
        nvmlDeviceGetCurrentClocksThrottleReasons=0x20,
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in (1, 2)],
        nvmlDeviceGetClockInfo=345,
    )


def test_the_drivers_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without persistence mode, of a driver that makes contexts one after another."""
    slow = {**fake_driver.build(tmp_path).environment, "INIT_MS": "800", "CONTEXT_MS": "100"}
    for name, value in slow.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nvml, "_import_pynvml", nvml_without_persistence)
    around = look([{"device": "cuda:0", "uuid": "GPU-a", "pci_bus_id": "0000:1b:00.0"}])
    facts = {"persistence_mode": False, "processes": 2, "slowed_by": ("heat",), "clock": 345}
    assert around["gpus"][0] | facts == around["gpus"][0]
    bench = bench_of(tmp_path, held_open_helps=True)
    driver(bench, GPUS, 3)
    assert [(one["experiment"], one.get("error")) for one in bench.runs] == [
        (name, None) for name in ("contexts", "contexts", "visible", "held")
    ]
    [at_once] = [run["measured"] for run in bench.runs if run.get("at_once")]
    assert at_once["at_once"] >= 0.2
    assert min(at_once["contexts"]) >= 0.1
    of = document(run("sequential", 2.0, causes={"cuInit": 0.8, "context": 0.2}), *bench.runs, environment=around)
    verify(of, conclude(of), bench)
    [on] = [part for part in of["serialization"][0]["on"] if part["what"] == "driver"]
    assert on["share"] == pytest.approx(0.5)
    assert "all at once" in on["evidence"]
    first = of["findings"][0]
    assert (first["id"], first["cause"], first["command"]) == ("persistence mode", "cuInit", "nvidia-smi -pm 1")
    assert first["title"].startswith("persistence mode is off on cuda:0: the driver's start takes 1")
    assert first["seconds"] > 0.4  # half of the delay in cuInit
    assert first["verified"]["interval"][0] > 1
    assert first["verified"]["before"] > first["verified"]["after"]


def test_a_driver_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is there one in the tests' own environment, unless it has a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("ortmulti.bench.diagnose.bench.find_devices", lambda *_: None)  # they are not gone
    bench = bench_of(tmp_path)
    made = bench.experiment("contexts", "native", GPUS, lambda: bench.probe("contexts", devices=GPUS))
    assert "CUDA driver" in made["error"]


def verified(folder: Path, of: dict[str, Any], **changes: Any) -> tuple[list[dict[str, Any]], FakeBench]:
    """A document's findings, and the bench that has verified them."""
    bench = bench_of(folder, **changes)
    verify(of, conclude(of), bench)
    return of["findings"], bench


def test_a_change_that_gains_nothing_is_no_finding(tmp_path: Path) -> None:
    """The first measurements differed by chance. Later ones do not, and the report still names what was tried."""
    of = document(run("sequential", 2.0), run("shared", 1.0))
    (first, second), _ = verified(tmp_path, of, seconds={"warm": {"sequential": 1.5, "shared": 1.5}})
    assert (first["id"], second["id"]) == ("nothing", "strategy")
    assert first["title"].startswith("nothing to gain: sequential creates the sessions on cuda:0, cuda:1 in 1.50 s")
    assert second["verified"]["speedup"] == pytest.approx(1.0)
    # What was run last counts, too, and nothing was watching then.
    assert of["prediction"]["seconds"] == pytest.approx({"sequential": 1.5, "shared": 1.5})


def test_a_change_that_helps_stays_the_first(tmp_path: Path) -> None:
    of = document(run("sequential", 2.0), run("shared", 1.0), environment={"cores": 2, "busy_cores": 2.0})
    (first, second), bench = verified(tmp_path, of, seconds={"warm": {"sequential": 3.0, "shared": 1.5}})
    assert (first["id"], second["id"]) == ("strategy", "busy cores")
    figures = [first["verified"][name] for name in ("before", "after", "speedup", "pairs")]
    assert figures == pytest.approx([3.0, 1.5, 2.0, 2])
    assert [one["way"] for one in bench.runs] == ["sequential", "shared", "shared", "sequential"]  # in turns
    # The prediction has the figures of the finding's title.
    assert of["prediction"]["seconds"] == pytest.approx({"sequential": 2.0, "shared": 1.0})


@pytest.mark.parametrize(
    ("budget", "shared", "pairs", "speedup"),
    [(1e6, 1.0, 6, 2.0), (1e6, 2.0, 6, 1.0), (1e-6, 1.0, 3, None)],
    ids=["gains", "gains nothing", "no budget"],
)
def test_further_changes_are_run_while_the_budget_lasts(
    budget: float, shared: float, pairs: int, speedup: float | None, tmp_path: Path
) -> None:
    """A cold disk costs 9 s for certain, and `shared` may be faster than 2 s."""
    of = from_a_cold_disk(run("sequential", 2.0), run("shared", 1.0))
    seconds = {"cold": {"sequential": 10.0}, "warm": {"sequential": 2.0, "shared": shared}}
    (first, second), _ = verified(tmp_path, of, seconds=seconds, quick=False, budget=budget)
    assert (first["id"], first["verified"]["pairs"], second["id"]) == ("cold disk", pairs, "strategy")
    assert (second["verified"] and second["verified"]["speedup"]) == (speedup and pytest.approx(speedup))


def test_kernels_that_the_driver_compiled_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "kept"))
    assert compiled_kernels() == 0
    (tmp_path / "kept/a/b").mkdir(parents=True)
    (tmp_path / "kept/index").write_bytes(b"12")
    (tmp_path / "kept/a/b/one").write_bytes(b"345")
    assert compiled_kernels() == 5
