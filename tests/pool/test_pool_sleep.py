"""What sleeps nowhere but on a GPU: pools on the CPU and over onnxruntime's sessions, and wrong arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import ortmulti
from ortmulti.pool.engine import BackendName
from tests.support import onnx_models
from tests.support.backends import on_every_backend

MODEL = onnx_models.matmul()
X = {"x": np.zeros((2, 64), np.float32)}


@pytest.fixture
def pool() -> Iterator[ortmulti.Pool]:
    with ortmulti.load(MODEL, "cpu") as made:
        yield made


@on_every_backend
def test_weights_that_cannot_sleep_are_refused(backend: BackendName) -> None:
    reason = {
        "core": r"on cpu cannot sleep: they are the page cache's, or the session's own",
        "threads": r"backend='threads' cannot sleep: its weights are onnxruntime's",
        "processes": r"backend='processes' cannot sleep: its weights are onnxruntime's",
    }[backend]
    with ortmulti.load(MODEL, "cpu", backend=backend) as pool:
        [expected] = pool.run(X)
        for keep in (None, "pinned"):
            with pytest.raises(ortmulti.NotImplemented, match=reason):
                pool.sleep(keep=keep)
        np.testing.assert_array_equal(pool.run(X)[0], expected)
        [device] = pool.stats().devices
        assert (device.asleep, device.sleeps, device.wakes, device.wake.count) == ("", 0, 0, 0)


@on_every_backend
def test_waking_a_pool_that_is_awake_does_nothing(backend: BackendName) -> None:
    with ortmulti.load(MODEL, "cpu", backend=backend) as pool:
        pool.wake()
        pool.wake("cpu", timeout=0)
        assert pool.stats().devices[0].wakes == 0
        pool.run(X)


MISTAKES: dict[str, Callable[[ortmulti.Pool], object]] = {
    "level is 'weights', not 'session'": lambda pool: pool.sleep("session"),
    "level is 'weights', not None": lambda pool: pool.sleep(None),
    "keep is 'pinned' or None, not 'disk'": lambda pool: pool.sleep(keep="disk"),
    "keep is 'pinned' or None, not True": lambda pool: pool.sleep(keep=True),
    "auto_wake is True or False, not 1": lambda pool: pool.sleep(auto_wake=1),
    "timeout is a number, not '1'": lambda pool: pool.sleep(timeout="1"),
    "timeout is 0 or more, not -1": lambda pool: pool.sleep(timeout=-1),
    "unknown device 'tpu'": lambda pool: pool.sleep(devices="tpu"),
    "the pool has no session on cuda:3: it has cpu": lambda pool: pool.sleep(devices=["cpu", "cuda:3"]),
    "timeout is a number, not []": lambda pool: pool.wake(timeout=[]),
    "timeout is 0 or more, not inf": lambda pool: pool.wake(timeout=float("inf")),
    "no session on cuda:3: it has cpu": lambda pool: pool.wake("cuda:3"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_wrong_argument_is_one_clear_error(pool: ortmulti.Pool, message: str) -> None:
    with pytest.raises(ortmulti.Error, match=re.escape(message)):
        MISTAKES[message](pool)


def test_a_closed_pool_neither_sleeps_nor_wakes(pool: ortmulti.Pool) -> None:
    pool.close()
    for call in (pool.sleep, pool.wake):
        with pytest.raises(ortmulti.ClosedError, match="the pool is closed"):
            call()
