"""Experiments and findings about the driver, over a fake one; and what becomes of findings whose changes are run."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ortmulti.bench.diagnose import diagnosis, environment
from ortmulti.bench.diagnose.bench import Bench
from ortmulti.bench.diagnose.conclusions import conclude
from ortmulti.bench.diagnose.verify import verify
from ortmulti.bench.measure import nvml
from tests.support.compiling import compile_library
from tests.support.diagnosis import GPUS, bench_of, document, from_a_cold_disk, run


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


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose cuInit takes 0.8 s, and each context 0.1 s, one after another."""
    compile_library("slow_driver.c", tmp_path / "libcuda.so.1")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("LD_LIBRARY_PATH")]))
    for name, value in {"LD_LIBRARY_PATH": path, "INIT_MS": "800", "CONTEXT_MS": "100"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def floor_of_fake_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core asks for more of a driver than the fake one has: contexts one by one are made as those at once are."""
    usual = Bench.fresh

    def measure(self: Bench, module: str, environment: dict[str, str] | None = None, **spec: Any) -> Any:
        if module != "ortmulti.bench.measure.floor":
            return usual(self, module, environment, **spec)
        begin = time.monotonic()
        made = self.probe("contexts", **spec)
        assert time.monotonic() - begin >= made["cuInit"]
        return {**made, "driver_floor": made["cuInit"] + made["at_once"]}

    monkeypatch.setattr(Bench, "fresh", measure)


@pytest.mark.usefixtures("driver", "floor_of_fake_driver")
def test_persistence_mode_that_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_import_pynvml", LibraryWithoutPersistence)
    bench = bench_of(tmp_path)
    found_gpus = [{"device": "cuda:0", "uuid": "GPU-a", "pci_bus_id": "0000:1b:00.0"}]
    around = environment.look(found_gpus)
    facts = {"persistence_mode": False, "processes": 2, "slowed_by": ("heat",), "clock": 345}
    assert around["gpus"][0] | facts == around["gpus"][0]
    bench.held_open_helps = True
    diagnosis.driver(bench, GPUS, 2)
    of = document(run("sequential", 2.0, causes={"cuInit": 0.8}), *bench.runs, environment=around)
    verify(of, conclude(of), bench)
    first = of["findings"][0]
    assert (first["id"], first["cause"], first["command"]) == ("persistence mode", "cuInit", "nvidia-smi -pm 1")
    assert first["title"].startswith("persistence mode is off on cuda:0: the driver's start takes 1")
    assert first["seconds"] > 0.4  # half of the delay in cuInit
    assert first["verified"]["interval"][0] > 1
    assert first["verified"]["before"] > first["verified"]["after"]


@pytest.mark.usefixtures("driver", "floor_of_fake_driver")
def test_contexts_that_a_driver_makes_one_after_another(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    diagnosis.driver(bench, GPUS, 2)
    of = document(run("sequential", 2.0, causes={"cuInit": 0.8, "context": 0.2}), *bench.runs)
    conclude(of)
    [sequential] = of["serialization"]
    [on] = [part for part in sequential["on"] if part["what"] == "driver"]
    assert on["share"] == pytest.approx(0.5)
    assert "all at once" in on["evidence"]
    [at_once] = [run["measured"] for run in bench.runs if run.get("at_once")]
    assert at_once["at_once"] >= 0.2
    assert min(at_once["contexts"]) >= 0.1


def test_a_driver_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is there one in the tests' own environment, unless it has a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("ortmulti.bench.diagnose.bench.find_devices", lambda *_: None)  # they are not gone
    bench = bench_of(tmp_path)
    made = bench.experiment("contexts", "native", GPUS, lambda: bench.probe("contexts", devices=GPUS))
    assert "CUDA driver" in made["error"]


def pair(bench: Bench, before: float, after: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts of "sequential" that take `before`, and of "shared" that take `after`."""
    seconds = {"sequential": before, "shared": after}

    def trace(_self: Bench, way: str, devices: tuple[str, ...], **_options: Any) -> dict[str, Any]:
        made = run(way, seconds[way], devices, experiment="verify")
        bench.runs.append(made)
        return made

    monkeypatch.setattr(Bench, "trace", trace)


def test_a_change_that_gains_nothing_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first measurements said so by chance; then nothing is to gain, and what was tried is told."""
    bench = bench_of(tmp_path)
    of = document(run("sequential", 2.0), run("shared", 1.0))
    pair(bench, 1.5, 1.5, monkeypatch)
    verify(of, conclude(of), bench)
    first, second = of["findings"]
    assert (first["id"], second["id"]) == ("nothing", "strategy")
    assert second["verified"]["speedup"] == pytest.approx(1.0)
    assert [one["experiment"] for one in of["runs"]].count("verify") == 4
    # What was run last counts, too, and nothing was watching then.
    assert of["prediction"]["seconds"] == pytest.approx({"sequential": 1.5, "shared": 1.5})


def test_a_change_that_helps_stays_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path)
    of = document(run("sequential", 2.0), run("shared", 1.0), environment={"cores": 2, "busy_cores": 2.0})
    pair(bench, 3.0, 1.5, monkeypatch)
    verify(of, conclude(of), bench)
    first, second = of["findings"]
    assert (first["id"], second["id"]) == ("strategy", "busy cores")
    assert (first["verified"]["before"], first["verified"]["after"]) == (pytest.approx(3.0), pytest.approx(1.5))
    assert first["verified"]["speedup"] == pytest.approx(2.0)
    assert first["verified"]["pairs"] == 2
    assert [one["way"] for one in bench.runs] == ["sequential", "shared", "shared", "sequential"]  # in turns
    # The prediction has the figures of the finding's title.
    assert of["prediction"]["seconds"] == pytest.approx({"sequential": 2.0, "shared": 1.0})


def verified_with(bench: Bench, monkeypatch: pytest.MonkeyPatch, shared: float) -> list[dict[str, Any]]:
    """The findings where a cold disk costs 9 s for certain, and `shared` may be faster than 2 s."""

    def trace(_self: Bench, way: str, devices: tuple[str, ...], **options: Any) -> dict[str, Any]:
        cache = options.get("cache", "warm")
        seconds = {"cold": 10.0, "warm": {"sequential": 2.0, "shared": shared}[way]}[cache]
        made = run(way, seconds, devices, experiment="verify", cache=cache)
        bench.runs.append(made)
        return made

    monkeypatch.setattr(Bench, "trace", trace)
    of = from_a_cold_disk(run("sequential", 2.0), run("shared", 1.0))
    verify(of, conclude(of), bench)
    findings: list[dict[str, Any]] = of["findings"]
    return findings


def longer(bench: Bench, budget: float) -> Bench:
    """With all repetitions that so many seconds allow."""
    return dataclasses.replace(bench, quick=False, budget=budget)


def test_further_changes_are_run_while_the_budget_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = verified_with(longer(bench_of(tmp_path), 1e6), monkeypatch, shared=1.0)
    assert (first["id"], second["id"]) == ("cold disk", "strategy")
    assert first["verified"]["pairs"] == second["verified"]["pairs"] == 6
    assert second["verified"]["speedup"] == pytest.approx(2.0)


def test_a_further_change_that_gains_nothing_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = verified_with(longer(bench_of(tmp_path), 1e6), monkeypatch, shared=2.0)
    assert (first["id"], second["id"]) == ("cold disk", "strategy")
    assert second["verified"]["speedup"] == pytest.approx(1.0)


def test_without_a_budget_the_first_change_alone_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = verified_with(longer(bench_of(tmp_path), 1e-6), monkeypatch, shared=1.0)
    assert (first["id"], first["verified"]["pairs"]) == ("cold disk", 3)
    assert (second["id"], second["verified"]) == ("strategy", None)
