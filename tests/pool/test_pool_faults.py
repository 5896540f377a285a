"""What goes wrong in a pool's use: every request is answered or fails once, and nothing hangs or stays behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import itertools
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

import ortmulti
from ortmulti import Batching, _core
from ortmulti._runtime import callbacks
from tests.support import onnx_models
from tests.support.pools import HANG, check_row, counted, in_threads, outcomes, row, rows
from tests.support.processes import check_child, nothing_leaks


@pytest.fixture
def pool(pool_of_rows: ortmulti.Pool) -> ortmulti.Pool:
    return pool_of_rows


@pytest.mark.usefixtures("silent")
def test_a_kernel_that_fails_fails_its_request_alone(pool: ortmulti.Pool) -> None:
    futures = [(number, pool.submit(None, row(number))) for number in [0, 1, 8, 2, -9, 3, 100, 4] * 50]
    for number, future in futures:
        if -8 <= number < 8:
            check_row(future.result(HANG), number)
        else:
            with pytest.raises(ortmulti.InvalidArgument, match="out of data bounds"):
                future.result(HANG)
    [device] = pool.stats().devices
    assert (device.done, device.failed, device.broken) == (250, 150, "")


@pytest.mark.usefixtures("silent")
def test_ctrl_c_while_an_error_is_made_is_raised_instead() -> None:
    def interrupt(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "_of_runtime":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    def check(call: Callable[[], object]) -> None:
        sys.setprofile(interrupt)
        with pytest.raises(KeyboardInterrupt):
            call()

    with ortmulti.load(rows(), "cpu") as pool:
        future = pool.submit(None, row(100))
        check(future.result)
        with pytest.raises((KeyboardInterrupt, ortmulti.Error)):
            future.result(HANG)
        check(lambda: pool.run(None, row(100)))
    check(lambda: pool.run(None, row(1)))
    check(lambda: pool.submit(None, row(1)))


@pytest.mark.usefixtures("silent")
def test_a_run_without_memory_fails_alone() -> None:
    def feed(count: int) -> dict[str, np.ndarray]:
        return {"x": np.ones(1, np.float32), "count": np.array([count])}

    with ortmulti.load(onnx_models.inflated(), "cpu", 2) as pool:
        futures = [(count, pool.submit(None, feed(count))) for count in [100, 2**50, 200, 2**50, 300]]
        for count, future in futures:
            if count < 2**50:
                np.testing.assert_array_equal(future.result(HANG)[0], [count])
            else:
                with pytest.raises(ortmulti.OutOfMemory):
                    future.result(HANG)
        with pytest.raises(MemoryError):
            pool.run(None, feed(2**50))
        np.testing.assert_array_equal(pool.run(None, feed(7))[0], [7])
        [device] = pool.stats().devices
        assert (device.done, device.failed, device.broken) == (4, 3, "")


@pytest.mark.usefixtures("silent")
def test_runs_that_fail_here_and_there_at_once(pool: ortmulti.Pool) -> None:

    def ask(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(100):
            number = numbers.randrange(-2, 12)
            if number < 8:
                check_row(pool.run(None, row(number % 8)), number % 8)
            else:
                with pytest.raises(ortmulti.InvalidArgument):
                    pool.run(None, row(number))

    in_threads(8, ask)
    assert counted(pool) == 800


def test_a_storm_of_cancellations(pool: ortmulti.Pool) -> None:
    asked: list[ortmulti.PoolFuture] = []

    def ask(seed: int) -> None:
        numbers = random.Random(seed)
        mine = []
        for _ in range(200):
            number = numbers.randrange(8)
            mine.append((number, pool.submit(None, row(number))))
            numbers.choice(mine)[1].cancel()
        asked.extend(future for _, future in mine)
        for number, future in mine:
            try:
                check_row(future.result(HANG), number)
            except concurrent.futures.CancelledError:
                assert future.cancelled()

    in_threads(8, ask)
    ended = outcomes(asked)
    assert set(ended) <= {"done", "cancelled"}
    pool.close()
    assert counted(pool) == 1600


@pytest.mark.usefixtures("silent")
def test_a_storm_of_deadlines(pool: ortmulti.Pool) -> None:
    asked: list[ortmulti.PoolFuture] = []
    too_late = []

    def ask(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(200):
            try:
                asked.append(
                    pool.submit(None, row(numbers.randrange(8)), timeout=numbers.choice([0.0, 1e-5, 1e-3, 60]))
                )
            except ortmulti.DeadlineExceeded:
                too_late.append(seed)

    in_threads(8, ask)
    ended = outcomes(asked)
    assert set(ended) <= {"done", "DeadlineExceeded"}
    assert ended["done"] > 0
    assert len(asked) + len(too_late) == 1600
    assert len(too_late) >= 300  # at least about those of no time at all
    pool.close()
    assert counted(pool) == len(asked)


def test_many_threads_may_close_a_busy_pool(pool: ortmulti.Pool) -> None:
    asked: list[ortmulti.PoolFuture] = []
    barrier = threading.Barrier(8)
    told: list[ortmulti.PoolFuture] = []

    def use(index: int) -> None:
        futures = [pool.submit(None, row(3)) for _ in range(100)]
        for future in futures:
            future.add_done_callback(told.append)
        asked.extend(futures)
        barrier.wait()
        if index < 4:
            pool.close(cancel_pending=index % 2 == 0)
            assert pool.closed
            return
        with contextlib.suppress(ortmulti.ClosedError):
            while True:
                asked.append(pool.submit(None, row(3)))
                asked[-1].add_done_callback(told.append)

    in_threads(8, use)
    ended = outcomes(asked)
    assert set(ended) <= {"done", "cancelled", "ClosedError"}
    assert counted(pool) == len(asked)
    assert len({id(future) for future in told}) == len(told)


def test_room_in_a_queue_of_none_is_found() -> None:
    made = ortmulti.load(rows(), "cpu", max_queue=0)

    def ask(number: int) -> None:
        for _ in range(50):
            check_row(made.submit(None, row(number)).result(HANG), number)

    with made:
        in_threads(8, ask)
        assert counted(made) == 400


def test_a_busy_pools_child_gets_errors_and_the_parent_its_answers() -> None:
    out = check_child(
        """
        import os
        import numpy as np
        import ortmulti
        from tests.support import onnx_models

        pool = ortmulti.load(onnx_models.matmul(512, 4), "cpu", 2)
        feed = {"x": np.zeros((64, 512), np.float32)}
        pool.run(None, feed)
        futures = [pool.submit(None, feed) for _ in range(300)]
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                refused = 0
                for call in (
                    lambda: pool.submit(None, feed),
                    lambda: pool.run(None, feed),
                    pool.stats,
                    futures[-1].result,
                    futures[-1].exception,
                ):
                    try:
                        call()
                    except ortmulti.ForkError:
                        refused += 1
                pool.close()
                # The child's own pool works, as it does in any process.
                options = ortmulti.SessionOptions()
                options.intra_op_num_threads = 1
                with ortmulti.load(onnx_models.matmul(), "cpu", options=options) as own:
                    own.submit(None, {"x": np.zeros((2, 64), np.float32)}).result(30)
                os._exit(0 if refused == 5 else 1 + refused)
            children.append(child)
            futures += [pool.submit(None, feed) for _ in range(50)]
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        for future in futures:
            future.result(30)
        print(sum(device.done for device in pool.stats().devices))
        """,
        timeout=120,
    )
    assert out == "[0, 0, 0, 0]\n501\n"


def test_a_thousand_pools_leave_nothing_behind() -> None:
    model = rows()

    def use() -> None:
        with ortmulti.load(model, "cpu", 2, batching=Batching(4)) as pool:
            futures = [pool.submit(None, row(number), timeout=60) for number in range(8)]
            for number, future in enumerate(futures):
                check_row(future.result(HANG), number)

    process = psutil.Process()
    for _ in range(300):
        use()
    gc.collect()
    with nothing_leaks():
        before = process.memory_info().rss
        for _ in range(700):
            use()
        gc.collect()
        grown = process.memory_info().rss - before
    assert grown < 4 << 20, f"{grown / 700:.0f} bytes a pool"


class _Runner:
    """Runs requests for the core (see ``cpp/bindings/python_runner.hpp``): gives the input, or fails."""

    def __init__(self, fails: Callable[[int, float], bool]) -> None:
        self.fails = fails
        self._runs = itertools.count(1)

    def run(self, _number: int, _names: object, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        if self.fails(next(self._runs), float(feed["x"][0])):
            raise ortmulti.Fail("it fails")
        return [feed["x"]]

    def terminate(self, _number: int) -> None:
        """Its runs are short."""


@pytest.mark.slow
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("fault", ["a device that fails", "requests that fail everywhere"])
def test_100_000_requests_of_64_threads_find_the_device_that_works(fault: str) -> None:
    of_device = fault == "a device that fails"
    works = threading.Event()
    broken = _Runner(lambda run, x: run >= 1000 and not works.is_set() if of_device else x < 0)
    good = _Runner(lambda _run, x: x < 0)
    callbacks.start()
    core = _core.Pool()
    for device, runner in (("cpu", good), ("cuda:0", broken)):
        core.add_runners(device, [runner], lambda _names, feed: (("y",), dict(feed)))
    failures: list[float] = []

    def ask(thread: int) -> None:
        for i in range(thread, 100_000, 64):
            x = -1.0 if i % 10 == 0 and not of_device else 1.0
            try:
                [y] = core.run(None, {"x": np.full(1, x, np.float32)}, None)
                assert y[0] == x
            except ortmulti.Fail:
                failures.append(x)

    in_threads(64, ask)
    [_, device] = core.stats()["devices"]
    if of_device:
        assert len(failures) <= 20
        assert "it fails" in device["suspended"]
        works.set()
        while core.stats()["devices"][1]["suspended"]:
            ask(99_999)
    else:
        assert failures == [-1.0] * 10_000
        assert [device["suspended"] for device in core.stats()["devices"]] == ["", ""]
    core.close(False)
