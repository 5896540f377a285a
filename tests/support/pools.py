"""Pools in tests: a model that some inputs fail in, and what became of requests."""

from __future__ import annotations

import concurrent.futures
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from onnx import numpy_helper

import ortmulti
from tests.support import onnx_models

T = TypeVar("T")

HANG = 60.0  # seconds, after which something that is waited for will not come

ENDLESS = onnx_models.endless()


def endless_feed(count: int = onnx_models.LONG) -> dict[str, np.ndarray]:
    """The inputs with which `ENDLESS` loops so often: by default until it is ended. Its output is `count`."""
    return {"x": np.zeros(1, np.float32), "count": np.array(count)}


def busy(pool: ortmulti.Pool) -> ortmulti.PoolFuture:
    """Have the only session of a pool of `ENDLESS` run something without end."""
    future = pool.submit(None, endless_feed())
    while pool.stats().devices[0].busy == 0:
        pass
    return future


def rows() -> bytes:
    """ "y" (float32 [n, 4]) = the rows of a table, number * 10 + column, whose numbers "x" (int64 [n]) has: 0 to 7."""
    table = np.arange(8, dtype=np.float32)[:, None] * 10 + np.arange(4, dtype=np.float32)
    return onnx_models.parsed(
        "(int64[n] x) => (float[n, 4] y) { y = Gather(table, x) }", numpy_helper.from_array(table, "table")
    ).SerializeToString()


def row(number: int) -> dict[str, np.ndarray]:
    return {"x": np.array([number])}


def check_row(outputs: list[np.ndarray], number: int) -> None:
    np.testing.assert_array_equal(outputs[0], [[10 * number, 10 * number + 1, 10 * number + 2, 10 * number + 3]])


def in_threads(count: int, target: Callable[[int], T]) -> list[T]:
    """Calls `target` with 0, 1, ... in as many threads, which begin together: its results, or what the first raised."""
    begin = threading.Barrier(count)

    def work(index: int) -> T:
        begin.wait()
        return target(index)

    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count)))


def outcomes(futures: list[ortmulti.PoolFuture]) -> Counter[str]:
    """How each ended, when all have."""
    done = concurrent.futures.wait(futures, timeout=HANG)
    assert not done.not_done
    return Counter(
        "cancelled" if each.cancelled() else type(each.exception()).__name__ if each.exception() else "done"
        for each in futures
    )


def counted(pool: ortmulti.Pool) -> int:
    """The requests that ended, by the pool's own account."""
    stats = pool.stats()
    assert stats.waiting == 0
    return (
        sum(device.done + device.failed + device.cancelled for device in stats.devices)
        + stats.cancelled_waiting
        + stats.failed_waiting
    )


def counted_bytes(model: Any, **options: Any) -> int:
    """The bytes that a repository counts a model as on the CPU."""
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("m", model, **options)
        [residency] = repository.stats().models["m"].devices
        return residency.weights + residency.kept
