"""`PoolFuture` as a `concurrent.futures.Future`: waits in the core, and waits by its condition."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti.pool.futures import when_answered
from tests.support.pools import ENDLESS, HANG, busy, check_row, endless_feed, in_threads, row


def test_a_result_may_be_asked_for_again(pool: ortmulti.Pool) -> None:
    future = pool.submit(None, row(3))
    check_row(future.result(), 3)
    assert future.result()[0] is future.result()[0]
    assert future.exception() is None
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (True, False, False, False)


def test_wait_and_as_completed_know_it(pool: ortmulti.Pool) -> None:
    futures: dict[concurrent.futures.Future[list[np.ndarray]], int]
    futures = {pool.submit(None, row(number % 8)): number % 8 for number in range(50)}
    assert not concurrent.futures.wait(futures, timeout=HANG).not_done
    for future in concurrent.futures.as_completed(futures, timeout=HANG):
        check_row(future.result(), futures[future])


def test_timing_says_where_the_time_went(endless: ortmulti.Pool) -> None:
    running = busy(endless)
    waiting = endless.submit(None, endless_feed(1))
    followed = endless.submit(None, endless_feed(100))
    followed.add_done_callback(lambda _: None)  # which another thread completes
    begin = time.monotonic()
    assert waiting.timing is None
    waited = time.monotonic() - begin
    running.cancel()
    concurrent.futures.wait([waiting, followed], timeout=HANG)
    assert running.timing is None
    for future in (waiting, followed):
        timing = future.timing
        assert isinstance(timing, ortmulti.RequestTiming)
        assert (timing.joined, timing.copied, timing.device, timing.batch_size) == (0.0, 0.0, "cpu", 1)
        assert timing.queued > waited
        assert 0 < timing.ran < HANG


def test_asyncio_wraps_it(pool: ortmulti.Pool) -> None:
    async def ask() -> None:
        check_row(await asyncio.wrap_future(pool.submit(None, row(2))), 2)

    asyncio.run(ask())


def test_several_threads_may_wait_for_one(pool: ortmulti.Pool) -> None:
    for number in range(50):
        future = pool.submit(None, row(number % 8))
        found: list[list[np.ndarray]] = []

        def ask(index: int, future: ortmulti.PoolFuture = future) -> None:
            if index % 2:
                concurrent.futures.wait([future], timeout=HANG)
            found.append(future.result(HANG))  # noqa: B023

        in_threads(4, ask)
        check_row(found[0], number % 8)
        assert all(each is found[0] for each in found)


def test_done_is_seen_without_a_wait(pool: ortmulti.Pool) -> None:
    future = pool.submit(None, row(4))
    until = time.monotonic() + HANG
    while not future.done() and time.monotonic() < until:
        time.sleep(0.001)
    check_row(future.result(0), 4)


def test_a_wait_ends_with_its_timeout(endless: ortmulti.Pool) -> None:
    future = endless.submit(None, endless_feed())
    for ask in (future.result, future.exception):
        with pytest.raises(TimeoutError, match=r"not answered within 0\.01 s, and goes on: cancel\(\) ends it"):
            ask(0.01)
    with pytest.raises(TimeoutError):
        future.result(0)
    assert not future.done()
    assert future.cancel()


def test_cancelling_ends_the_waits_of_other_threads() -> None:
    options = ortmulti.RunOptions()  # the run goes on
    with ortmulti.load(ENDLESS, "cpu") as pool, concurrent.futures.ThreadPoolExecutor() as threads:
        future = pool.submit(None, endless_feed(), options)
        waits = threads.submit(future.result, HANG)
        time.sleep(0.05)
        assert future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            waits.result(HANG)
        options.terminate = True


def test_a_callback_is_called_though_a_thread_waits_for_the_result(pool: ortmulti.Pool) -> None:
    for number in range(50):
        future = pool.submit(None, row(number % 8))
        told = threading.Event()
        thread = threading.Thread(target=future.result)
        thread.start()
        future.add_done_callback(lambda _, told=told: told.set())  # type: ignore[misc]
        assert told.wait(HANG)
        thread.join()


def test_a_failure_is_raised_each_time(pool: ortmulti.Pool) -> None:
    future = pool.submit(None, row(50))
    for _ in range(2):
        with pytest.raises(ortmulti.Error):
            future.result(HANG)
    assert isinstance(future.exception(), ortmulti.Error)


def test_whoever_follows_a_request_gets_its_answer_once(endless: ortmulti.Pool, pool: ortmulti.Pool) -> None:
    delivered: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    running = endless.submit(None, endless_feed())
    assert running._request is not None
    for name in ("one", "other"):
        when_answered(running._request, partial(_deliver, delivered, name))
    assert delivered.empty()
    assert running.cancel()
    assert {delivered.get(timeout=HANG)[0] for _ in range(2)} == {"one", "other"}
    answered = pool.submit(None, row(3))
    request = answered._request
    assert request is not None
    check_row(answered.result(HANG), 3)
    when_answered(request, partial(_deliver, delivered, "late"))
    assert delivered.get_nowait()[:4] == ("late", answered.result(), None, False)
    assert delivered.empty()


def _deliver(to: SimpleQueue[tuple[Any, ...]], name: str, *taken: object) -> None:
    to.put((name, *taken))
