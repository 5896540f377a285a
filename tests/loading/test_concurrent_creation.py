"""Creating sessions at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ortmulti
from benchmarks import concurrent_creation
from tests.support import onnx_models


@pytest.mark.parametrize(
    "rounds", [pytest.param(40, id="fast"), pytest.param(1000, id="1000 rounds", marks=pytest.mark.slow)]
)
def test_concurrent_creation_on_the_cpu(rounds: int, tmp_path: Path) -> None:
    result = concurrent_creation.stress(rounds, "cpu", sessions_per_device=3, run_every=5, folder=tmp_path)
    assert result["failures"] == []
    assert result["sessions"] == 3 * rounds
    assert result["outputs_compared"] > 0


def test_python_threads_create_run_and_close_at_the_same_time() -> None:
    x = np.ones((2, 64), np.float32)
    # One thread a session: the order of additions is then the same everywhere.
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = 1
    expected = onnx_models.cpu_session(onnx_models.matmul(), options).run(None, {"x": x})[0]
    start = threading.Barrier(8)

    def work(_number: int) -> int:
        start.wait()
        equal = 0
        for _ in range(10):
            with ortmulti.create_sessions(onnx_models.matmul(), "cpu", 2, options, strategy="native") as sessions:
                equal += sum(bool((s.run(None, {"x": x})[0] == expected).all()) for s in sessions)
        return equal

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [20] * 8


def test_many_sessions_at_once() -> None:
    with ortmulti.create_sessions(onnx_models.matmul(8), "cpu", 64, strategy="native") as sessions:
        x = np.ones((1, 8), np.float32)
        results = {session.run(None, {"x": x})[0].tobytes() for session in sessions}
    assert len(results) == 1


def test_the_same_bytes_may_be_used_by_several_creations() -> None:
    model = bytearray(onnx_models.matmul())
    with ThreadPoolExecutor(4) as pool:
        created = list(pool.map(lambda _: ortmulti.create_sessions(model, "cpu", 2, strategy="native"), range(4)))
    model.clear()
    x = np.ones((1, 64), np.float32)
    assert len({s.run(None, {"x": x})[0].tobytes() for sessions in created for s in sessions}) == 1
