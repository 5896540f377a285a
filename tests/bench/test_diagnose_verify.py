"""Experiments and findings about the driver, over a fake one; and what becomes of findings whose changes are run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ortmulti.bench.diagnose import diagnosis, environment
from ortmulti.bench.diagnose.bench import Bench
from ortmulti.bench.diagnose.findings import conclude
from ortmulti.bench.diagnose.verify import verify
from ortmulti.bench.measure import nvml
from tests.support import fake_driver, onnx_models
from tests.support.diagnosis import GPUS, WAYS, document, from_a_cold_disk, run


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
    nothing = folder / "nothing"
    usual = {"ways": WAYS, "repeat": 5, "budget": 50.0, "quick": True, "settings": {}, "timeout": 600.0}
    places = {"files": (model,), "feeds": nothing, "cache": nothing}
    bench = FakeBench(devices=GPUS, progress=lambda *_: None, **places, **{**usual, **changes})
    bench.seconds = seconds or {}
    return bench


class LibraryWithoutPersistence:
    """The part of pynvml that is used, for GPUs without persistence mode: while it is open, the driver starts at once.

    It stands in for hardware, as the driver below does, which takes its time from the environment.
    """

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = 1

    def nvmlInit(self) -> None:  # noqa: N802
        self._slow = os.environ["INIT_MS"]
        os.environ["INIT_MS"] = "0"

    def nvmlShutdown(self) -> None:  # noqa: N802
        os.environ["INIT_MS"] = self._slow

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = {
            "nvmlDeviceGetHandleByUUID": SimpleNamespace(),
            "nvmlDeviceGetPersistenceMode": 0,
            "nvmlDeviceIsMigDeviceHandle": 0,
            "nvmlDeviceGetUUID": "GPU-a",
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1), SimpleNamespace(pid=2)],
            "nvmlDeviceGetClockInfo": 345,
        }

        def answer(*_arguments: Any) -> Any:
            if name not in values:
                raise self.NVMLError
            return values[name]

        return answer


def test_the_drivers_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without persistence mode, of a driver that makes contexts one after another."""
    slow = {**fake_driver.build(tmp_path).environment, "INIT_MS": "800", "CONTEXT_MS": "100"}
    for name, value in slow.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nvml, "_import_pynvml", LibraryWithoutPersistence)
    around = environment.look([{"device": "cuda:0", "uuid": "GPU-a", "pci_bus_id": "0000:1b:00.0"}])
    facts = {"persistence_mode": False, "processes": 2, "slowed_by": ("heat",), "clock": 345}
    assert around["gpus"][0] | facts == around["gpus"][0]
    bench = bench_of(tmp_path, held_open_helps=True)
    diagnosis.driver(bench, GPUS, 2)
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


def test_a_change_that_gains_nothing_is_no_finding(tmp_path: Path) -> None:
    """The first measurements said so by chance; then nothing is to gain, and what was tried is told."""
    bench = bench_of(tmp_path, {"warm": {"sequential": 1.5, "shared": 1.5}})
    of = document(run("sequential", 2.0), run("shared", 1.0))
    verify(of, conclude(of), bench)
    first, second = of["findings"]
    assert (first["id"], second["id"]) == ("nothing", "strategy")
    assert second["verified"]["speedup"] == pytest.approx(1.0)
    assert [one["experiment"] for one in of["runs"]].count("verify") == 4
    # What was run last counts, too, and nothing was watching then.
    assert of["prediction"]["seconds"] == pytest.approx({"sequential": 1.5, "shared": 1.5})


def test_a_change_that_helps_stays_the_first(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, {"warm": {"sequential": 3.0, "shared": 1.5}})
    of = document(run("sequential", 2.0), run("shared", 1.0), environment={"cores": 2, "busy_cores": 2.0})
    verify(of, conclude(of), bench)
    first, second = of["findings"]
    assert (first["id"], second["id"]) == ("strategy", "busy cores")
    assert (first["verified"]["before"], first["verified"]["after"]) == (pytest.approx(3.0), pytest.approx(1.5))
    assert first["verified"]["speedup"] == pytest.approx(2.0)
    assert first["verified"]["pairs"] == 2
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
    seconds = {"cold": {"sequential": 10.0}, "warm": {"sequential": 2.0, "shared": shared}}
    bench = bench_of(tmp_path, seconds, quick=False, budget=budget)
    of = from_a_cold_disk(run("sequential", 2.0), run("shared", 1.0))
    verify(of, conclude(of), bench)
    first, second = of["findings"]
    assert (first["id"], first["verified"]["pairs"], second["id"]) == ("cold disk", pairs, "strategy")
    assert (second["verified"] and second["verified"]["speedup"]) == (speedup and pytest.approx(speedup))
