"""First runs before a pool's first request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Warmup
from tests.support import onnx_models
from tests.support.processes import nothing_leaks

MODEL = onnx_models.matmul()
X = {"x": np.zeros((2, 64), np.float32)}


def spans(pool: ortmulti.Pool) -> list[str]:
    return [span.device for span in pool.timeline.spans if span.name == "warm up"]


def test_every_session_runs_and_says_so() -> None:
    with ortmulti.load(MODEL, "cpu", 3, warmup=True) as pool:
        assert spans(pool) == ["cpu"] * 3
        pool.warmup(Warmup(samples=[X, {"x": np.zeros((5, 64), np.float32)}], runs=2))
        assert len(spans(pool)) == 6
        assert pool.stats().devices[0].runs == 0
    with ortmulti.load(MODEL, "cpu") as pool:
        assert spans(pool) == []


@pytest.mark.parametrize(
    ("warmup", "error"),
    [
        (Warmup(samples={"z": X["x"]}), ortmulti.InvalidArgument),
        (Warmup(samples={"x": np.zeros((2, 5), np.float32)}), ortmulti.InvalidArgument),
        (Warmup(dimensions={"unknown": 3}), ortmulti.InvalidArgument),
    ],
)
def test_a_warmup_that_fails_fails_the_load(warmup: Warmup, error: type[Exception]) -> None:
    with pytest.raises(error):
        ortmulti.load(MODEL, "cpu", warmup=warmup)


@pytest.mark.parametrize("warmup", [True, Warmup(), Warmup(dimensions={"n": 2})])
def test_random_inputs_grow_for_models_with_a_smallest_size(warmup: Any, caplog: pytest.LogCaptureFixture) -> None:
    with ortmulti.load(onnx_models.at_least(400), "cpu", 2, warmup=warmup) as pool:
        [y] = pool.run(None, {"x": np.ones((1, 1, 401), np.float32)})
        assert y.shape == (1, 1, 2)
        pool.warmup()
    assert not [record for record in caplog.records if record.name == "ortmulti"]


def test_a_load_goes_on_without_random_inputs_that_fit(caplog: pytest.LogCaptureFixture) -> None:
    x = {"x": np.ones((1, 1, 1000), np.float32)}
    with ortmulti.load(onnx_models.at_least(1000), "cpu", 3, warmup=True) as pool:
        assert pool.run(None, x)[0].shape == (1, 1, 1)
        [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert "loaded without a first run, since it takes no random inputs" in warning
        assert "warmup=Warmup(samples=...)" in warning
        with pytest.raises(ortmulti.Error, match="Invalid input shape"):
            pool.warmup()
        with pytest.raises(ortmulti.Error, match="Invalid input shape"):
            ortmulti.load(onnx_models.at_least(1000), "cpu", warmup=Warmup())
        pool.warmup(Warmup(samples=x))


@pytest.mark.parametrize("wait", ["first", "none"])
@pytest.mark.parametrize("require", ["all", "any"])
def test_a_load_in_the_background_goes_on_too(wait: Any, require: Any, caplog: pytest.LogCaptureFixture) -> None:
    with ortmulti.load(
        onnx_models.at_least(1000),
        "cpu",
        2,
        loading=ortmulti.Loading(strategy="native", wait=wait, require=require),
        warmup=True,
    ) as pool:
        pool.wait_ready()
        assert pool.run(None, {"x": np.ones((1, 1, 1000), np.float32)})[0].shape == (1, 1, 1)
        pool.sleep("session")
        pool.wake()
        pool.replace_model(onnx_models.at_least(400))
        assert len(spans(pool)) > 2
    assert caplog.text.count("without a first run") == 1


def test_ctrl_c_while_its_thread_starts_waits_for_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, interrupted, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow(Warmup):
        def feeds(self, session: Any) -> Iterator[list[Mapping[str, Any]]]:
            begun.set()
            interrupted.wait()
            time.sleep(0.2)
            ended.set()
            return super().feeds(session)

    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "ortmulti-warmup":
            begun.wait()
            interrupted.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    with nothing_leaks():
        with pytest.raises(KeyboardInterrupt):
            ortmulti.load(MODEL, "cpu", warmup=Slow())
        assert ended.is_set()


def test_ctrl_c_before_its_thread_starts_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with nothing_leaks(), pytest.raises(KeyboardInterrupt):
        ortmulti.load(MODEL, "cpu", warmup=True)


@pytest.mark.parametrize(
    "arguments",
    [{"runs": 0}, {"runs": "1"}, {"samples": 3}, {"dimensions": [3]}, {"samples": X, "dimensions": {"n": 1}}],
)
def test_what_cannot_be_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ortmulti.InvalidArgument):
        Warmup(**arguments)
