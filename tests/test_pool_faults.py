"""What goes wrong in a pool's use: every request is answered or fails once, and nothing hangs or stays behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import logging
import os
import random
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import Batching
from tests import _models
from tests._processes import check_child, nothing_leaks

HANG = 60.0  # seconds, after which something that is waited for will not come


def rows() -> bytes:
    """ "y" (float32 [n, 4]) = the rows of a table, number * 10 + column, whose numbers "x" (int64 [n]) has: 0 to 7."""
    table = np.arange(8, dtype=np.float32)[:, None] * 10 + np.arange(4, dtype=np.float32)
    return _models.model(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        [("x", TensorProto.INT64, ["n"])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(table, "table")],
    ).SerializeToString()


def row(number: int) -> dict[str, np.ndarray]:
    return {"x": np.array([number])}


def check_row(outputs: list[np.ndarray], number: int) -> None:
    np.testing.assert_array_equal(outputs[0], [[10 * number, 10 * number + 1, 10 * number + 2, 10 * number + 3]])


def in_threads(count: int, target: Callable[[int], object]) -> None:
    """Calls `target` with 0, 1, ... in as many threads, and raises what the first of them raised."""
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        for future in [threads.submit(target, index) for index in range(count)]:
            future.result()


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


@pytest.fixture
def silent() -> Iterator[None]:
    """Without what ONNX Runtime logs of runs that fail or are ended."""
    logger = logging.getLogger("ortmulti.onnxruntime")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.fixture(params=[None, Batching(4), Batching(4, max_delay_ms=2)], ids=["alone", "joined", "delayed"])
def pool(request: pytest.FixtureRequest) -> Iterator[ortmulti.Pool]:
    with ortmulti.load(rows(), "cpu", 2, batching=request.param) as made:
        yield made


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
def test_a_run_without_memory_fails_alone() -> None:
    def feed(count: int) -> dict[str, np.ndarray]:
        return {"x": np.ones(1, np.float32), "count": np.array([count])}

    with ortmulti.load(_models.inflated(), "cpu", 2) as pool:
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


def test_a_callback_may_close_its_pool(pool: ortmulti.Pool) -> None:
    closed = threading.Event()

    def close(_: object) -> None:
        pool.close()
        pool.close(cancel_pending=True)
        closed.set()

    futures = [pool.submit(None, row(1)) for _ in range(100)]
    futures[10].add_done_callback(close)
    assert closed.wait(HANG)
    assert set(outcomes(futures)) <= {"done", "cancelled"}
    with pytest.raises(ortmulti.ClosedError):
        pool.submit(None, row(1))


def test_a_callback_may_drop_the_last_reference_to_its_pool() -> None:
    made = [ortmulti.load(rows(), "cpu")]
    gone = weakref.ref(made[0])
    done = threading.Event()

    def drop(_: object) -> None:
        made.clear()
        gc.collect()
        done.set()

    made[0].submit(None, row(1)).add_done_callback(drop)
    assert done.wait(HANG)
    assert gone() is None


def test_callbacks_may_ask_again_and_again(pool: ortmulti.Pool) -> None:
    answers: list[float] = []
    done = threading.Event()

    def more(future: concurrent.futures.Future[list[np.ndarray]]) -> None:
        answers.append(float(future.result()[0][0, 0]))
        if len(answers) == 300:
            done.set()
        else:
            pool.submit(None, row(len(answers) % 8)).add_done_callback(more)

    pool.submit(None, row(0)).add_done_callback(more)
    assert done.wait(HANG)
    assert answers == [10 * (i % 8) for i in range(300)]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_callback_raises_harms_nobody(
    pool: ortmulti.Pool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unraisable: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: unraisable.append(raised.exc_type))
    delivering, go_on = threading.Event(), threading.Event()

    def fail(_: object) -> None:
        raise error("in a callback")

    def wait(_: object) -> None:
        delivering.set()
        go_on.wait(HANG)

    # While the delivering thread waits in a callback, the next one is given before its request is told.
    options = ortmulti.RunOptions()
    with ortmulti.load(_models.endless(), "cpu") as endless:
        ended = endless.submit(None, {"x": np.zeros(1, np.float32), "count": np.array(2**62)}, options)
        ended.add_done_callback(wait)
        options.terminate = True
        assert delivering.wait(HANG)
        last = pool.submit(None, row(2))
        last.add_done_callback(fail)
        go_on.set()
        check_row(last.result(HANG), 2)
        check_row(pool.submit(None, row(5)).result(HANG), 5)
    if error is ValueError:
        assert "exception calling callback" in caplog.text
    else:
        assert unraisable == [error]


def test_futures_in_cycles_are_collected(pool: ortmulti.Pool) -> None:
    class Holder:
        """Refers to itself, a future, and by its callback to both."""

    seen = []
    for number in range(50):
        holder = Holder()
        holder.itself = holder  # type: ignore[attr-defined]
        holder.future = pool.submit(None, row(number % 8))  # type: ignore[attr-defined]
        holder.future.add_done_callback(lambda _, holder=holder: holder)  # type: ignore[attr-defined]
        seen.append((weakref.ref(holder), weakref.ref(holder.future)))  # type: ignore[attr-defined]
    del holder
    gc.collect()  # also while they are being answered
    pool.close()
    told = threading.Event()
    with ortmulti.load(rows(), "cpu") as other:  # answered after them, by the same thread
        other.submit(None, row(0)).add_done_callback(lambda _: told.set())
        assert told.wait(HANG)
    gc.collect()
    assert [(holder(), future()) for holder, future in seen] == [(None, None)] * 50


def test_what_is_freed_with_a_request_may_ask_the_pool() -> None:
    """In a child, since it would hang: the pool's threads must not free a request under the pool's lock."""
    check_child(
        """
        import threading
        import numpy as np
        import ortmulti
        from tests.test_pool_faults import rows

        class Array(np.ndarray):
            def __del__(self):
                if isinstance(self.base, np.ndarray):
                    pool.closed
                    pool.stats()

        def ask():
            for number in range(300):
                x = np.array([number % 8]).view(Array)
                try:
                    future = pool.submit(None, {"x": x}, timeout=[None, 1e-3, 60][number % 3])
                except ortmulti.DeadlineExceeded:
                    continue
                del x
                pool.closed
                if number % 4 == 0:
                    future.cancel()
                elif number % 4 == 1:
                    try:
                        pool.run(None, {"x": np.array([number % 8]).view(Array)})
                        future.result()
                    except ortmulti.DeadlineExceeded:
                        pass

        for batching in (None, ortmulti.Batching(4)):
            pool = ortmulti.load(rows(), "cpu", 2, batching=batching)
            threads = [threading.Thread(target=ask) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            pool.close()
        """,
        timeout=120,
    )


def test_room_in_a_queue_of_none_is_found() -> None:
    def ask(number: int) -> None:
        for _ in range(50):
            check_row(pool.submit(None, row(number)).result(HANG), number)

    with ortmulti.load(rows(), "cpu", max_queue=0) as pool:
        in_threads(8, ask)
        assert counted(pool) == 400


def test_a_busy_pools_child_gets_errors_and_the_parent_its_answers() -> None:
    out = check_child(
        """
        import os
        import numpy as np
        import ortmulti
        from tests import _models

        pool = ortmulti.load(_models.matmul(512, 4), "cpu", 2)
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
                with ortmulti.load(_models.matmul(), "cpu", options=options) as own:
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


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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
    assert os.getpid() == process.pid
