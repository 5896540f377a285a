"""Requests of a repository's model while it is unloaded and loaded again: each is answered, fails or is cancelled."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ortmulti
from tests.support import onnx_models
from tests.support.pools import ENDLESS, HANG, busy, endless_feed

SIZE = len(onnx_models.matmul())
X = {"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return onnx_models.write_matmuls(tmp_path_factory.mktemp("models"), 4)


@pytest.fixture(scope="module")
def expected(files: list[Path]) -> list[np.ndarray]:
    return [ortmulti.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, X)[0] for path in files]


def asking(model: ortmulti.Pool) -> dict[str, Callable[[], object]]:
    """Every way to ask a model of `ENDLESS`."""
    feed = endless_feed(1)
    return {
        "run": lambda: model.run(feed),
        "submit": lambda: model.submit(feed).result(HANG),
        "run_async": lambda: asyncio.run(model.run_async(feed)),
        "map": lambda: list(model.map([feed])),
        "as_completed": lambda: list(model.as_completed([feed])),
        "map_rows": lambda: model.map_rows({"x": feed["x"]}),
        "get_inputs": model.get_inputs,
    }


def check_refused(model: ortmulti.Pool, reason: str) -> None:
    for way, ask in asking(model).items():
        with pytest.raises(ortmulti.NotFound, match=re.escape(f"the model 'm' {reason}")) as caught:
            ask()
        assert (caught.type, caught.value.http_status) == (ortmulti.NotLoaded, 503), way


def test_a_model_that_is_unloaded_refuses_requests_with_a_public_error_and_a_reason() -> None:
    with ortmulti.ModelRepository("cpu") as repository, ThreadPoolExecutor(1) as threads:
        repository.add("m", ENDLESS, warmup=False)
        run = busy(repository["m"])
        unloading = threads.submit(repository.unload, "m")
        while repository.index()[0].state == "READY":
            pass
        try:
            check_refused(repository["m"], "is being unloaded: load it again")
        finally:
            run.cancel()
        unloading.result(HANG)
        check_refused(repository["m"], "is not loaded (unloaded): load it first")


def test_a_load_that_was_interrupted_or_whose_check_failed_says_why_the_model_is_not_there(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("m", files[0])

        def unload_and_refuse(_: ortmulti.Pool) -> bool:
            repository.unload("m")
            return False

        with pytest.raises(ortmulti.Error, match="verify has returned False"):
            repository["m"].replace_model(files[1], verify=unload_and_refuse)
        with pytest.raises(ortmulti.NotLoaded, match=r"not loaded \(unloaded\)"):
            repository.run("m", X)

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("ortmulti.pool.load.load", interrupted)
            with pytest.raises(KeyboardInterrupt):
                repository.load("m")
        assert (repository.index()[0].state, repository.index()[0].reason) == ("UNAVAILABLE", "KeyboardInterrupt")
        with pytest.raises(ortmulti.NotLoaded, match=r"not loaded \(KeyboardInterrupt\): load it first"):
            repository.run("m", X)


def test_answers_before_an_unload_are_not_lost(files: list[Path], expected: list[np.ndarray]) -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("m", files[0])

        def feeds() -> Iterator[dict[str, np.ndarray]]:
            yield X
            yield X
            repository.unload("m")
            yield X

        model = repository["m"]
        for answered in (
            model.map(feeds(), lookahead=8),
            (future.result() for _, future in model.as_completed(feeds(), lookahead=8)),
        ):
            found = []
            with pytest.raises(ortmulti.NotLoaded) as caught:
                found.extend(answered)
            assert len(found) == 2
            np.testing.assert_array_equal(found, [[expected[0]]] * 2)
            assert caught.value.__notes__ == ["This is feed 2, counted from 0."]
            repository.load("m")


def test_requests_beside_swaps_are_answered_or_refused_once(files: list[Path], expected: list[np.ndarray]) -> None:
    def client(number: int) -> Counter[str]:
        model, ended = repository["m"], Counter[str]()
        ways: list[Callable[[], list[list[np.ndarray]]]] = [
            lambda: [model.run(X)],
            lambda: [model.submit(X).result(HANG)],
            lambda: [asyncio.run(model.run_async(X, timeout=HANG))],
            lambda: list(model.map([X] * 5)),
        ]
        while not over.is_set():
            ended["asked"] += 1
            try:
                answers = ways[number % len(ways)]()
                assert len(answers) == (5 if number == 3 else 1)
                assert all(any(np.array_equal(y, one) for one in expected[:2]) for [y] in answers)
                ended["done"] += 1
            except ortmulti.Error as error:
                refusals.append(error)
                ended["refused"] += 1
            except CancelledError:  # a future's, by unload(cancel_pending=True)
                assert number in (1, 3)
                ended["cancelled"] += 1
        return ended

    over, refusals = threading.Event(), list[ortmulti.Error]()
    with (
        ortmulti.ModelRepository("cpu", host_memory=int(2.5 * SIZE)) as repository,
        ThreadPoolExecutor(4) as threads,
    ):
        repository.add("m", files[0])
        repository.add("other", files[2])
        repository.add("another", files[3])
        clients = [threads.submit(client, number) for number in range(4)]
        try:
            for swap in range(12):
                if swap % 3 == 2:
                    repository.load("m", files[swap // 3 % 2])
                else:
                    repository.unload("m", cancel_pending=swap % 3 == 1)
                    repository.load("m")
                repository.run("other", X)  # for which others sleep
                repository.run("another", X)
        finally:
            over.set()
        ended = sum((each.result(HANG) for each in clients), Counter[str]())
    assert ended["asked"] == ended["done"] + ended["refused"] + ended["cancelled"]
    assert ended["done"] > 0
    assert {type(error) for error in refusals} <= {ortmulti.NotLoaded}
    for error in refusals:
        assert re.search(r" is (being|still being|not) (un)?loaded( \(\w+\))?: ", str(error)), error
