"""Calls of the system that fail, one after the other: right results or one ortmulti error, and nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fake_driver, fault_runs, onnx_models
from tests.support import faults as _faults
from tests.support.processes import ROOT, child_environment, run_child


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _faults.build(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return fake_driver.build(tmp_path_factory.mktemp("driver")).environment


FIRST = [pytest.param(name, 1) for name in ("load", "load_first", "gpu_load", "gpu_weights")]
EVERY = [pytest.param(name, 10**6, marks=pytest.mark.slow, id=f"{name}-every") for name in fault_runs.OPERATIONS]


@pytest.mark.parametrize(("scenario", "most"), [*FIRST, *EVERY])
def test_a_call_fails(scenario: str, most: int, tmp_path: Path, faults: dict[str, str], driver: dict[str, str]) -> None:
    """The first call of each kind, or each in turn."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    folders = {"ORTMULTI_CACHE": str(tmp_path / "cache"), "TMPDIR": str(temporary)}
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.fault_runs", scenario, str(most), str(tmp_path)],
        env=child_environment({**faults, **driver, **folders}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    outcomes = json.loads(child.stdout)
    print(f"{scenario}: {outcomes}")
    assert sum(outcomes.values()) > 0


# From the import to the exit, in a process of its own for each thread.
WHOLE_LIFE = """
    import ctypes, os, sys
    import numpy as np
    import ortmulti
    from ortmulti import _core

    model = bytes.fromhex(sys.argv[1])
    x = {"x": np.ones((1, 8), np.float32)}

    def use():
        ortmulti.prewarm([0, 1])
        with ortmulti.load(model, "cpu", 2, loading=ortmulti.Loading(wait="first"), warmup=True) as pool:
            assert pool.submit(None, x, timeout=60).result()[0].shape == (1, 8)
        session = ortmulti.InferenceSession(model, providers=["CPUExecutionProvider"])
        assert session.run(None, x)[0].shape == (1, 8)

    try:
        use()
        outcome = "right"
    except ortmulti.Error as error:
        outcome = type(error).__name__
    faults = ctypes.CDLL(os.environ["FAULTS_LIBRARY"])
    failures = faults.faults_failures()
    faults.faults_arm(b"", 0, ctypes.c_long(0), ctypes.c_long(0), b"")
    use()
    print(outcome, failures, ortmulti._core.cuda_device_count())
"""


def whole_life(first: int, environment: dict[str, str]) -> bool:
    """Whether the thread of this number was asked for, and not given."""
    changes = {**environment, **_faults.from_start("pthread_create", 11, first)}
    environment = {**changes, "CUDA_VISIBLE_DEVICES": "0,1,2", "OPENBLAS_NUM_THREADS": "1"}  # NumPy has no threads
    child = run_child(WHOLE_LIFE, onnx_models.matmul(8).hex(), environment=environment, timeout=60)
    assert child.returncode == 0, child.stderr
    assert "Traceback" not in child.stderr  # ONNX Runtime says where its telemetry has no thread
    outcome, failures, devices = child.stdout.split()
    print(f"thread {first}: {outcome}")
    assert devices == "3"
    assert outcome in ("right", "RuntimeException", "Fail")
    return failures != "0"


def test_a_process_without_one_of_its_threads(faults: dict[str, str], driver: dict[str, str]) -> None:
    for first in (2, 3):
        whole_life(first, {**faults, **driver})


@pytest.mark.slow
def test_a_process_without_any_one_of_its_threads(faults: dict[str, str], driver: dict[str, str]) -> None:
    first = 1
    while whole_life(first, {**faults, **driver}):
        first += 1
    assert first > 5
