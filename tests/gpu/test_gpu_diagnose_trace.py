"""Traces of processes that use GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ortmulti.bench.diagnose.trace import trace
from ortmulti.bench.strategies import SessionSettings, names

pytestmark = pytest.mark.gpu

ONE_THREAD = SessionSettings(intra_op_num_threads=1)


@pytest.fixture(scope="module")
def gpus() -> list[str]:
    """All of them, counted by another process: this one is not to start the driver."""
    code = "from ortmulti import _core; print(_core.cuda_device_count())"
    counted = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [f"cuda:{index}" for index in range(int(counted.stdout))]


@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("way", names())
def test_every_way_has_the_causes_of_gpus(resnet50: Path, gpus: list[str], way: str, every: bool) -> None:
    if every and len(gpus) < 2:
        pytest.skip("needs 2 GPUs")
    devices = gpus if every else gpus[:1]
    run = trace(resnet50, way, devices, settings=ONE_THREAD)
    assert "error" not in run, run
    assert sum(run["causes"].values()) == pytest.approx(run["wall"])
    assert len(run["first_answers"]) == len(devices)
    # Spans, not "causes": each may lie wholly beside another one, which the first session waits for as well.
    assert {"cuInit", "context", "libraries", "algorithm search"} <= {span["cause"] for span in run["spans"]}
    assert {span["device"] for span in run["spans"] if span["cause"] == "context"} == set(devices)
