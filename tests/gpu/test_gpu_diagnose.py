"""`ortmulti diagnose` on GPUs: traces, the driver's experiments, findings about it, and a GPU that vanishes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ortmulti import _core
from ortmulti.bench.diagnose.diagnosis import diagnose
from ortmulti.bench.diagnose.trace import trace
from ortmulti.bench.strategies import SessionSettings, names
from tests.support import gpus

pytestmark = pytest.mark.gpu


def runs_of(document: dict[str, Any], experiment: str) -> list[dict[str, Any]]:
    return [run for run in document["runs"] if run["experiment"] == experiment]


def check(document: dict[str, Any]) -> None:
    assert document["partial"] is None
    assert [run["error"] for run in document["runs"] if run.get("error")] == []
    assert document["prediction"]["best"] in document["settings"]["ways"]


def test_every_gpu(resnet50: Path) -> None:
    document = diagnose(resnet50, "all", quick=True)
    check(document)
    count = _core.cuda_device_count()
    assert document["settings"]["devices"] == [f"cuda:{index}" for index in range(count)]
    contexts = runs_of(document, "contexts")
    assert len(contexts[0]["measured"]["contexts"]) == count
    assert {run["at_once"] for run in contexts} == ({False, True} if count > 1 else {False})
    assert all(run["measured"]["driver_floor"] > 0 for run in contexts if not run["at_once"])
    assert runs_of(document, "visible") == []


def test_what_the_search_for_algorithms_costs(resnet50: Path) -> None:
    document = diagnose(resnet50, "cuda:0", ways=("sequential", "shared"), quick=True)
    check(document)
    assert "algorithm search" in [finding["id"] for finding in document["findings"]]
    heuristic = diagnose(
        resnet50,
        "cuda:0",
        ways=("sequential",),
        quick=True,
        settings={"provider_options": {"cudnn_conv_algo_search": "HEURISTIC"}},
    )
    check(heuristic)
    assert "algorithm search" not in [finding["id"] for finding in heuristic["findings"]]


def test_gpus_that_are_visible_and_not_used(resnet50: Path) -> None:
    gpus.needs_gpus(2)
    document = diagnose(resnet50, "cuda:1", ways=("native",), quick=True)
    check(document)
    assert document["settings"]["visible_gpus"] == _core.cuda_device_count()
    [alone] = runs_of(document, "visible")
    [every] = runs_of(document, "contexts")
    assert alone["devices"] == every["devices"] == ["cuda:1"]
    assert alone["measured"]["driver_floor"] > 0


def test_a_gpu_that_vanishes(resnet50: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second way on the processes do not see it any more, as after a fault of its."""
    gpus.needs_gpus(2)

    def progress(_done: int, _total: int, text: str) -> None:
        if text.startswith("plain, native"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    document = diagnose(resnet50, [0, 1], ways=("sequential", "native", "threads"), progress=progress)
    assert document["partial"].startswith("a device has vanished: there is no cuda:1")
    assert [run["way"] for run in document["runs"] if not run.get("error")] == ["sequential"]
    assert document["prediction"]["best"] == "sequential"
    assert all(finding["verified"] is None for finding in document["findings"])


@pytest.fixture(scope="module")
def every_gpu() -> list[str]:
    """All of them, counted by another process: this one is not to start the driver."""
    code = "from ortmulti import _core; print(_core.cuda_device_count())"
    counted = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [f"cuda:{index}" for index in range(int(counted.stdout))]


@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("way", names())
def test_every_way_has_the_causes_of_gpus(resnet50: Path, every_gpu: list[str], way: str, every: bool) -> None:
    if every and len(every_gpu) < 2:
        pytest.skip("needs 2 GPUs")
    devices = every_gpu if every else every_gpu[:1]
    run = trace(resnet50, way, devices, settings=SessionSettings(intra_op_num_threads=1))
    assert "error" not in run, run
    assert sum(run["causes"].values()) == pytest.approx(run["wall"])
    assert len(run["first_answers"]) == len(devices)
    # Spans, not "causes": each may lie wholly beside another one, which the first session waits for as well.
    assert {"cuInit", "context", "libraries", "algorithm search"} <= {span["cause"] for span in run["spans"]}
    assert {span["device"] for span in run["spans"] if span["cause"] == "context"} == set(devices)
