"""What goes wrong in a pool's use: every request is answered or fails once, and nothing hangs or stays behind."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import psutil
import pytest

import ortmulti
from ortmulti import Batching
from tests.support import onnx_models
from tests.support.pools import ENDLESS, HANG, check_row, counted, endless_feed, in_threads, outcomes, row, rows
from tests.support.processes import check_child, nothing_leaks


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

    # The arenas have a region already: the next one after a failure is as large as the machine's memory.
    with ortmulti.load(onnx_models.inflated(), "cpu", 2, warmup=ortmulti.Warmup(samples=feed(1))) as pool:
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


# A request and the check of its answer; None where it is a mistake, for which the model has none.
Asked: TypeAlias = tuple[dict[str, np.ndarray], Callable[[list[np.ndarray]], None] | None]


def of_rows(numbers: random.Random) -> Asked:
    number = numbers.randrange(-2, 10)
    return row(number), None if number >= 8 else lambda outputs: check_row(outputs, number % 8)


def of_loops(numbers: random.Random) -> Asked:
    """Their runs take milliseconds, so they are cancelled and end at their deadlines, too."""
    count = numbers.randrange(1, 5_000)
    if numbers.random() < 0.1:
        return {**endless_feed(count), "x": np.zeros((2, 2), np.float32)}, None
    return endless_feed(count), lambda outputs: np.testing.assert_array_equal(outputs[0], [count])


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("choose", "arguments"),
    [
        pytest.param(of_rows, {}, id="alone"),
        pytest.param(of_rows, {"batching": Batching(4)}, id="joined"),
        pytest.param(of_rows, {"batching": Batching(4, max_delay_ms=2)}, id="delayed"),
        pytest.param(of_loops, {}, id="long runs"),
    ],
)
def test_every_request_ends_once_whatever_is_done_to_it(
    choose: Callable[[random.Random], Asked], arguments: dict[str, Any]
) -> None:
    """Threads that ask, cancel, set deadlines, make mistakes and overfill the queue, all at once."""
    asked: list[tuple[ortmulti.PoolFuture, Any, SimpleQueue[ortmulti.PoolFuture]]] = []
    refused: list[str] = []

    def ask(seed: int) -> None:
        numbers = random.Random(seed)
        mine: list[ortmulti.PoolFuture] = []
        for _ in range(150):
            feed, check = choose(numbers)
            timeout = numbers.choice([None, 60, 1e-2, 1e-3, 0])
            try:
                mine.append(pool.submit(None, feed, timeout=timeout, when_full="block" if seed % 2 else 1e-3))
            except (ortmulti.QueueFull, ortmulti.DeadlineExceeded) as error:
                refused.append(type(error).__name__)
                continue
            calls: SimpleQueue[ortmulti.PoolFuture] = SimpleQueue()
            mine[-1].add_done_callback(calls.put)
            asked.append((mine[-1], check, calls))
            if numbers.random() < 0.3:
                numbers.choice(mine).cancel()

    model = rows() if choose is of_rows else ENDLESS
    with ortmulti.load(model, "cpu", 2, max_queue=3, **arguments) as pool:
        in_threads(8, ask)
    ended = outcomes([future for future, _, _ in asked])
    for future, check, calls in asked:
        assert calls.get(timeout=HANG) is future
        assert calls.empty()
        if not future.cancelled() and not isinstance(future.exception(), ortmulti.DeadlineExceeded):
            assert isinstance(future.exception(), ortmulti.Error) == (check is None)
            if check is not None:
                check(future.result())
    assert len(ended) >= 2  # done and as a mistake; how many were in time for a cancellation or a deadline is chance
    assert {*refused} <= {"QueueFull", "DeadlineExceeded"}
    assert len(asked) + len(refused) == 8 * 150
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


def test_a_busy_pools_child_gets_errors_and_the_parent_its_answers() -> None:
    out = check_child(
        """
        import os
        import sys
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
        """
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
