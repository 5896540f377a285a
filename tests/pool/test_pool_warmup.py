"""First runs before a pool's first request."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Warmup
from ortmulti.pool.engine import BackendName
from tests.support import onnx_models
from tests.support.backends import on_every_backend
from tests.support.processes import nothing_leaks

MODEL = onnx_models.matmul()
X = {"x": np.zeros((2, 64), np.float32)}


def spans(pool: ortmulti.Pool) -> list[str]:
    return [span.device for span in pool.timeline.spans if span.name == "warm up"]


@on_every_backend
def test_every_session_runs_and_says_so(backend: BackendName) -> None:
    with ortmulti.load(MODEL, "cpu", 3, warmup=True, backend=backend) as pool:
        assert spans(pool) == ["cpu"] * 3
        pool.warmup(Warmup(samples=[X, {"x": np.zeros((5, 64), np.float32)}], runs=2))
        assert len(spans(pool)) == 6
        assert pool.stats().devices[0].runs == 0
    with ortmulti.load(MODEL, "cpu", backend=backend) as pool:
        assert spans(pool) == []


@on_every_backend
@pytest.mark.parametrize(
    ("warmup", "error"),
    [
        (Warmup(samples={"z": X["x"]}), ortmulti.InvalidArgument),
        (Warmup(samples={"x": np.zeros((2, 5), np.float32)}), ortmulti.InvalidArgument),
        (Warmup(dimensions={"unknown": 3}), ortmulti.InvalidArgument),
        (3, ortmulti.InvalidType),
        ({"x": 1}, ortmulti.InvalidType),
    ],
)
def test_a_warmup_that_fails_fails_the_load(warmup: Warmup, error: type[Exception], backend: BackendName) -> None:
    with pytest.raises(error):
        ortmulti.load(MODEL, "cpu", warmup=warmup, backend=backend)


def test_ctrl_c_while_its_thread_starts_waits_for_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, interrupted, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow(Warmup):
        def feeds(self, session: Any) -> list[Any]:
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

    ortmulti.load(MODEL, "cpu").close()
    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    with nothing_leaks():
        with pytest.raises(KeyboardInterrupt):
            ortmulti.load(MODEL, "cpu", warmup=Slow())
        assert ended.is_set()


def test_ctrl_c_before_its_thread_starts_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    ortmulti.load(MODEL, "cpu").close()
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
