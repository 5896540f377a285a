"""What the callbacks of a pool's futures may do, and what is freed with a request."""

from __future__ import annotations

import concurrent.futures
import gc
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Batching
from tests.support.pools import ENDLESS, HANG, check_row, endless_feed, outcomes, row, rows
from tests.support.processes import check_child


@pytest.mark.parametrize("arguments", [{}, {"batching": Batching(4)}], ids=str)
def test_a_callback_may_close_its_pool(arguments: dict[str, Any]) -> None:
    pool = ortmulti.load(rows(), "cpu", 2, **arguments)
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


@pytest.mark.parametrize("followed", [False, True])
def test_outputs_that_cannot_be_given_fail_the_request(pool: ortmulti.Pool, followed: bool) -> None:
    def fail(outputs: list[object]) -> list[object]:
        raise ortmulti.InvalidType(f"not {outputs!r}")

    future = pool.submit(None, row(0))
    future._wrap = fail
    if followed:
        future.add_done_callback(lambda _: None)
    with pytest.raises(ortmulti.InvalidType, match=r"not \[array"):
        future.result(HANG)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_callback_raises_harms_nobody(
    pool: ortmulti.Pool,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    unraisable: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: unraisable.append(raised.exc_type))
    told = threading.Event()

    def fail(_: object) -> None:
        raise error("in a callback")

    # By the delivering thread, since the request does not end before it has its callback.
    options = ortmulti.RunOptions()
    with ortmulti.load(ENDLESS, "cpu", 2) as endless:
        failing, next_one = (endless.submit(None, endless_feed(), options) for _ in range(2))
        failing.add_done_callback(fail)
        next_one.add_done_callback(lambda _: told.set())
        options.terminate = True
        assert isinstance(failing.exception(HANG), ortmulti.Error)
        assert told.wait(HANG)
    until = time.monotonic() + HANG
    while not (unraisable or caplog.text) and time.monotonic() < until:  # which of the two came first nobody knows
        time.sleep(0.01)
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
        from tests.support.pools import rows

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
    )
