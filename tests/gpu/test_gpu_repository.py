"""Model repositories on a GPU: weights come and go, measured by the driver."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ortmulti
from ortmulti._runtime import background
from ortmulti.bench import models
from ortmulti.pool import graphs
from tests.support.gpus import check_memory_returns, needs_graphs
from tests.support.pools import HANG, in_threads

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_memory]

MB = 1 << 20
COUNT = 8
MEGABYTES = 128


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [
        models.make("matmul", tmp_path_factory.mktemp("models"), megabytes=MEGABYTES, seed=seed)
        for seed in range(COUNT)
    ]


@pytest.fixture(scope="module")
def feed(files: list[Path]) -> dict[str, np.ndarray]:
    [x] = ortmulti.InferenceSession(files[0], providers=["CPUExecutionProvider"]).get_inputs()
    return {"x": np.random.default_rng(0).standard_normal((4, int(x.shape[1] or 0)), np.float32)}


@pytest.fixture(scope="module")
def expected(files: list[Path], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    answers = []
    for file in files:
        with ortmulti.load(file, 0) as pool:
            answers.append(pool.run(feed)[0])
    return answers


def make(files: list[Path], awake: int) -> ortmulti.ModelRepository:
    """All models, and memory for the weights of some."""
    with ortmulti.ModelRepository(0, gpu_memory=0.5) as measured:
        measured.add("m", files[0])
        kept = measured.stats().models["m"].devices[0].kept
    repository = ortmulti.ModelRepository(0, gpu_memory=COUNT * (kept + 32 * MB) + (awake * MEGABYTES + 16) * MB)
    for index, file in enumerate(files):
        repository.add(f"m{index}", file)
    return repository


@pytest.fixture
def three(files: list[Path]) -> Iterator[ortmulti.ModelRepository]:
    with make(files, 3) as repository:
        yield repository


def test_weights_are_measured_and_sleep_within_the_budget(
    three: ortmulti.ModelRepository, feed: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    for model in three.stats().models.values():
        [residency] = model.devices
        assert residency.state == "weights"
        assert abs(residency.weights - MEGABYTES * MB) < 16 * MB
    for index in [0, 1, 2, 3, 4, 0, 5, 6, 7, 0]:
        np.testing.assert_array_equal(three.run(f"m{index}", feed)[0], expected[index])
        stats = three.stats()
        assert stats.models[f"m{index}"].devices[0].state == "awake"
        assert stats.devices[0].used <= stats.devices[0].budget
    assert three.stats().models["m0"].pool.devices[0].asleep == ""


def test_requests_of_many_threads(
    three: ortmulti.ModelRepository, feed: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    wrong: list[object] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            [device] = three.stats().devices
            if device.used > device.budget:
                wrong.append(device)

    watcher = threading.Thread(target=watch)
    watcher.start()

    def client(number: int) -> None:
        choose = random.Random(number)
        for _ in range(100):
            index = min(choose.randrange(COUNT), choose.randrange(COUNT))
            if not np.array_equal(three.run(f"m{index}", feed)[0], expected[index]):
                wrong.append(index)

    in_threads(6, client)
    over.set()
    watcher.join()
    assert not wrong
    stats = three.stats()
    assert sum(model.pool.devices[0].done for model in stats.models.values()) == 600
    assert sum(model.devices[0].evictions for model in stats.models.values()) > 0


def test_sessions_are_closed_where_what_they_keep_is_too_much(
    files: list[Path], feed: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    with ortmulti.ModelRepository(0, gpu_memory=0.5) as measured:
        measured.add("m", files[0])
        [residency] = measured.stats().models["m"].devices
    taken = residency.weights + residency.kept
    with ortmulti.ModelRepository(0, gpu_memory=2 * taken + 64 * MB) as repository:
        for index, file in enumerate(files):
            repository.add(f"m{index}", file)
        for index in range(COUNT):
            np.testing.assert_array_equal(repository.run(f"m{index}", feed)[0], expected[index])
        states = {model.devices[0].state for model in repository.stats().models.values()}
        assert "session" in states


def test_graphs_are_made_while_a_quarter_of_the_budget_is_free(
    files: list[Path], feed: dict[str, np.ndarray], expected: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_graphs()
    monkeypatch.setattr(graphs, "waits_for_gpus", str)  # another test may have used PyTorch
    with ortmulti.ModelRepository(0, gpu_memory=0.5) as roomy:
        roomy.add("m", files[0])
        roomy.run("m", feed)
        used = roomy.stats().devices[0].used
        end = time.monotonic() + HANG
        while roomy.stats().models["m"].pool.devices[0].graph_runs < 20:
            assert time.monotonic() < end
            np.testing.assert_allclose(roomy.run("m", feed)[0], expected[0], rtol=1e-4, atol=1e-4)
    with ortmulti.ModelRepository(0, gpu_memory=used * 6 // 5) as full:
        full.add("m", files[0])
        for _ in range(100):
            np.testing.assert_array_equal(full.run("m", feed)[0], expected[0])
        background.wait()
        assert full.stats().models["m"].pool.devices[0].graph_sessions == 0


def test_memory_is_back_after_close(files: list[Path], feed: dict[str, np.ndarray]) -> None:
    def cycle() -> None:
        with make(files, 2) as repository:
            for index in range(COUNT):
                repository.run(f"m{index}", feed)

    check_memory_returns(cycle, rounds=1)
