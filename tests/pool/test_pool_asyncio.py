"""`Pool.run_async` and event loops: who is woken, and what loops and tasks may do meanwhile."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
import gc
import inspect
import logging
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

import ortmulti
from ortmulti.pool import event_loops
from tests.support.pools import ENDLESS, HANG, check_row, endless_feed, in_threads, row, rows
from tests.support.processes import files

NewLoop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


class WithoutReaders(asyncio.SelectorEventLoop):
    """A loop that watches no file descriptors."""

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


@pytest.fixture(params=["asyncio", "uvloop", "without readers"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    if request.param == "uvloop":
        new: NewLoop = pytest.importorskip("uvloop").new_event_loop
        return new
    return asyncio.new_event_loop if request.param == "asyncio" else WithoutReaders


async def is_busy(pool: ortmulti.Pool) -> None:
    while pool.stats().devices[0].busy == 0:
        await asyncio.sleep(0)


@pytest.fixture
def nothing_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither by asyncio, such as an exception that was never retrieved, nor as unraisable."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: unraisable.append((raised.exc_value, raised.object)))
    with caplog.at_level(logging.DEBUG, "asyncio"):
        yield
        gc.collect()
    assert unraisable == []
    assert [record for record in caplog.records if record.name != "asyncio" or record.levelno > logging.DEBUG] == []


def test_async_with_answers_what_was_asked_and_closes(new_loop: NewLoop) -> None:
    async def ask() -> None:
        loaded = ortmulti.load(ENDLESS, "cpu")
        async with loaded as pool:
            assert pool is loaded
            endless = asyncio.create_task(pool.run_async(endless_feed()))
            await is_busy(pool)
            waiting = asyncio.create_task(pool.run_async(endless_feed()))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.01, endless.cancel)
            asyncio.get_running_loop().call_later(0.02, waiting.cancel)
        assert pool.closed  # although the loop had to cancel the requests meanwhile
        with pytest.raises(ortmulti.ClosedError, match="load the model again"):
            async with pool:
                pass
        with pytest.raises(ortmulti.ClosedError, match="load the model again"), pool:
            pass

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(asyncio.wait_for(ask(), HANG))


def test_without_a_loop_of_asyncio_the_error_says_what_to_do(pool: ortmulti.Pool) -> None:
    """As under trio, which steps the same coroutines."""
    for coroutine in (pool.run_async(None, row(1)), pool.__aenter__()):
        with pytest.raises(ortmulti.RuntimeException, match=r"needs asyncio's event loop.*trio\.to_thread\.run_sync"):
            coroutine.send(None)
    assert not pool.closed


def test_the_loop_gets_all_answers(pool: ortmulti.Pool, new_loop: NewLoop) -> None:
    async def ask() -> None:
        for number, outputs in enumerate(await asyncio.gather(*(pool.run_async(None, row(n % 8)) for n in range(200)))):
            check_row(outputs, number % 8)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())
        runner.run(ask())


def test_a_joint_run_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    delivered: list[int] = []

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        add_reader = loop.add_reader

        def add(descriptor: int, callback: Callable[[], None]) -> None:
            def counted() -> None:
                delivered.append(descriptor)
                callback()

            add_reader(descriptor, counted)

        monkeypatch.setattr(loop, "add_reader", add)
        await asyncio.gather(*(pool.run_async(None, row(n % 8)) for n in range(32)))

    with ortmulti.load(rows(), "cpu", batching=ortmulti.Batching(32, max_delay_ms=60_000)) as pool:
        asyncio.run(ask())
        assert pool.stats().devices[0].runs == 1
    assert len(delivered) == 1


@pytest.mark.parametrize("new_loop", ["asyncio", "uvloop"], indirect=True)
def test_a_task_that_ends_the_loop_leaves_the_other_answers(new_loop: NewLoop) -> None:
    """Its joint run's answers come in one turn of a loop that watches descriptors."""
    got: list[int] = []

    async def ask(number: int) -> None:
        check_row(await pool.run_async(None, row(number)), number)
        got.append(number)
        if number == 1:
            raise SystemExit(7)

    with ortmulti.load(rows(), "cpu", batching=ortmulti.Batching(4, max_delay_ms=60_000)) as pool:
        loop = new_loop()
        tasks = [loop.create_task(ask(number)) for number in range(4)]
        with pytest.raises(SystemExit, match="7"):
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        assert got[:2] == [0, 1]  # uvloop ends its turn before it stops
        ends = loop.run_until_complete(asyncio.gather(tasks[0], tasks[2], tasks[3]))
        assert (got, list(ends)) == ([0, 1, 2, 3], [None] * 3)
        assert isinstance(tasks[1].exception(), SystemExit)
        loop.close()


@pytest.mark.usefixtures("nothing_is_logged")
def test_a_loop_may_be_closed_before_its_answers_come(new_loop: NewLoop) -> None:
    options = ortmulti.RunOptions()
    with ortmulti.load(ENDLESS, "cpu", 2) as pool:
        loop = new_loop()

        async def ask() -> None:
            asked = asyncio.ensure_future(pool.run_async(None, endless_feed(), options))
            await is_busy(pool)
            assert not asked.done()
            asked._log_destroy_pending = False  # type: ignore[attr-defined]

        loop.run_until_complete(ask())
        loop.close()
        gone = weakref.ref(loop)
        del loop
        options.terminate = True
        pool.close()
        assert pool.stats().devices[0].failed == 1
    give_up = time.monotonic() + HANG
    while gone() is not None and time.monotonic() < give_up:  # another thread drops the last reference
        gc.collect()
    assert gone() is None


def test_two_loops_in_two_threads(pool: ortmulti.Pool, new_loop: NewLoop) -> None:
    threads: set[int] = set()

    async def one(number: int) -> None:
        check_row(await pool.run_async(None, row(number)), number)
        threads.add(threading.get_ident())

    async def ask() -> None:
        for _ in range(20):
            await asyncio.gather(*(one(number % 8) for number in range(50)))

    def run(_: int) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(ask())

    in_threads(2, run)
    assert len(threads) == 2


def test_two_loops_in_turns_in_one_thread(pool: ortmulti.Pool, new_loop: NewLoop) -> None:
    loops = [new_loop(), new_loop()]
    for number in range(8):
        check_row(loops[number % 2].run_until_complete(pool.run_async(None, row(number))), number)
    for loop in loops:
        loop.close()


def test_many_loops_one_after_another_leave_nothing(pool: ortmulti.Pool, new_loop: NewLoop) -> None:
    async def ask() -> None:
        check_row(await pool.run_async(None, row(1)), 1)

    def run() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(ask())

    run()
    gc.collect()
    before = len(files())
    for _ in range(20):
        run()
    gc.collect()
    assert len(files()) <= before
    assert len(event_loops._watches) <= 1


@pytest.mark.usefixtures("nothing_is_logged")
def test_cancelling_the_task_cancels_the_request(endless: ortmulti.Pool) -> None:
    async def ask() -> None:
        running, waiting = (asyncio.create_task(endless.run_async(None, endless_feed())) for _ in range(2))
        await is_busy(endless)
        for task in (waiting, running):
            task.cancel()
        ended = await asyncio.gather(running, waiting, return_exceptions=True)
        assert [type(each) for each in ended] == [asyncio.CancelledError] * 2

    asyncio.run(ask())
    endless.close()
    stats = endless.stats()
    assert (stats.cancelled_waiting, stats.devices[0].cancelled) == (1, 1)


@pytest.mark.usefixtures("nothing_is_logged")
def test_the_failure_of_a_cancelled_request_is_not_reported() -> None:
    options = ortmulti.RunOptions()  # the run goes on

    async def ask() -> None:
        task = asyncio.create_task(pool.run_async(None, endless_feed(), options))
        await is_busy(pool)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        options.terminate = True
        while not pool.stats().devices[0].cancelled:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)

    with ortmulti.load(ENDLESS, "cpu") as pool:
        asyncio.run(ask())


@pytest.mark.usefixtures("nothing_is_logged")
def test_a_coroutine_that_is_closed_cancels_its_request(endless: ortmulti.Pool) -> None:
    async def ask() -> None:
        coroutine = endless.run_async(None, endless_feed())
        coroutine.send(None)
        coroutine.close()

    asyncio.run(ask())
    endless.close()
    assert endless.stats().devices[0].cancelled + endless.stats().cancelled_waiting == 1


@pytest.mark.usefixtures("nothing_is_logged")
def test_a_pool_that_is_closed_is_an_error_and_cancels_no_task(new_loop: NewLoop) -> None:
    async def ask_in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(pool.run_async(None, endless_feed()))

    async def ask() -> None:
        tasks = [asyncio.create_task(pool.run_async(None, endless_feed())) for _ in range(3)]
        while pool.stats().waiting < 2:
            await asyncio.sleep(0)
        group = asyncio.create_task(ask_in_a_group())
        while pool.stats().waiting < 3:
            await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(pool.close, cancel_pending=True))
        while not pool.closed:
            await asyncio.sleep(0)
        tasks[0].cancel()  # not before: the next one would run
        await closing
        with pytest.raises(ExceptionGroup) as errors:
            await group
        assert [type(error) for error in errors.value.exceptions] == [ortmulti.ClosedError]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [asyncio.CancelledError, ortmulti.ClosedError, ortmulti.ClosedError]

    with ortmulti.load(ENDLESS, "cpu") as pool, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())


def test_context_variables_stay_with_their_task(pool: ortmulti.Pool) -> None:
    name: contextvars.ContextVar[int] = contextvars.ContextVar("name")

    async def one(number: int) -> None:
        name.set(number)
        for _ in range(20):
            check_row(await pool.run_async(None, row(number % 8)), number % 8)
            assert name.get() == number

    async def ask() -> None:
        await asyncio.gather(*(one(number) for number in range(20)))

    asyncio.run(ask())


def test_the_loop_keeps_no_context_of_a_task(pool: ortmulti.Pool) -> None:
    class Held:
        """What a variable has."""

    name: contextvars.ContextVar[Held] = contextvars.ContextVar("name")

    async def one() -> weakref.ref[Held]:
        held = Held()
        name.set(held)
        check_row(await pool.run_async(None, row(1)), 1)
        return weakref.ref(held)

    async def ask() -> None:
        held = await asyncio.create_task(one())
        await asyncio.sleep(0)  # the loop has the last callback
        gc.collect()
        assert held() is None

    asyncio.run(ask())


def test_a_stopped_loop_gets_its_answers_when_it_goes_on(pool: ortmulti.Pool) -> None:
    loop = asyncio.new_event_loop()

    async def ask() -> asyncio.Task[list[Any]]:
        return asyncio.create_task(pool.run_async(None, row(3)))

    task = loop.run_until_complete(ask())
    loop.run_until_complete(asyncio.sleep(0.05))
    check_row(loop.run_until_complete(task), 3)
    loop.close()


def slow_feed(pool: ortmulti.Pool) -> dict[str, Any]:
    """Inputs of `ENDLESS` whose run would hold up a loop; found outside of one."""
    count = 100_000
    while pool.stats().devices[0].total.max < 0.2:
        pool.run(endless_feed(count))
        count *= 2
    return endless_feed(count)


def test_a_run_that_holds_up_the_event_loop_is_warned_of_once() -> None:
    async def ask() -> None:
        for _ in range(2):
            pool.run(feed)

    with ortmulti.load(ENDLESS, "cpu") as pool:
        feed = slow_feed(pool)
        message = r"held up the event loop for \d+ ms: await pool\.run_async\(\)"
        with pytest.warns(RuntimeWarning, match=message) as found:
            asyncio.run(ask())
    assert [each.filename for each in found] == [__file__]


@pytest.mark.parametrize(
    ("cell", "warns"),
    [
        ("pool.run(feed)", False),
        ("def helper():\n    pool.run(feed)\nhelper()\nawait asyncio.sleep(0)", False),
        ("async def answer():\n    pool.run(feed)\nawait answer()", True),
        ("asyncio.get_running_loop().call_soon(pool.run, feed)\nawait asyncio.sleep(0)", True),
    ],
    ids=["cell", "awaiting cell", "coroutine in a cell", "callback"],
)
def test_a_notebooks_cell_that_runs_in_an_event_loop_is_not_warned(cell: str, warns: bool) -> None:
    """There Ctrl-C ends a run at once, and does not end one that is awaited."""
    code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run_cell() -> None:  # as IPython does
        result = eval(code, {"asyncio": asyncio, "pool": pool, "feed": feed})
        if inspect.isawaitable(result):
            await result

    with ortmulti.load(ENDLESS, "cpu") as pool:
        feed = slow_feed(pool)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            asyncio.run(run_cell())
    assert len(found) == warns
