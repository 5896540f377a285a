"""Requests to a pool: runs, futures, order, cancellation, deadlines, errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from types import MappingProxyType

import numpy as np
import pytest

import ortmulti
from ortmulti.pool.call import Call
from tests.support import onnx_models
from tests.support.pools import ENDLESS, HANG, busy, endless_feed
from tests.support.processes import nothing_leaks, run_child


def feed(number: float) -> dict[str, np.ndarray]:
    return {"x": np.full((2, 64), number, np.float32)}


@pytest.fixture
def pool() -> Iterator[ortmulti.Pool]:
    with ortmulti.load(onnx_models.matmul(), "cpu", 2) as made:
        yield made


@functools.cache
def session() -> ortmulti.InferenceSession:
    return onnx_models.cpu_session(onnx_models.matmul())


def answer(number: float) -> np.ndarray:
    return session().run(None, feed(number))[0]


def test_run_and_submit_give_what_a_session_gives(pool: ortmulti.Pool) -> None:
    expected = answer(3)
    np.testing.assert_array_equal(pool.run(None, feed(3))[0], expected)
    future = pool.submit(["y"], feed(3))
    np.testing.assert_array_equal(future.result()[0], expected)
    assert isinstance(future, concurrent.futures.Future)
    np.testing.assert_array_equal(pool.run(["y"], feed(3), device="cpu", timeout=60)[0], expected)


def test_pools_come_from_load() -> None:
    with pytest.raises(ortmulti.InvalidType, match=r"not made from str: ortmulti\.load\(model, devices\) returns one"):
        ortmulti.Pool("m.onnx")  # type: ignore[arg-type, unused-ignore]


def test_the_inputs_alone_ask_for_all_outputs(pool: ortmulti.Pool) -> None:
    expected = answer(3)
    given = MappingProxyType(feed(3))
    for [y] in (
        pool.run(given),
        pool.submit(given, timeout=60).result(),
        asyncio.run(pool.run_async(given, device="cpu")),
        next(pool.map([given])),
        next(pool.as_completed(iter([given])))[1].result(),
        pool.map_rows(given),
    ):
        np.testing.assert_array_equal(y, expected)


def test_inputs_that_are_no_dict_are_refused(pool: ortmulti.Pool) -> None:
    x = feed(3)["x"]
    for call in (pool.run, pool.submit, lambda *wrong: asyncio.run(pool.run_async(*wrong)), pool.map_rows):
        for wrong, name in (([x], "ndarray"), ([], "None"), ([None], "None"), ([["y"]], "list")):
            with pytest.raises(ortmulti.InvalidType, match=rf"run\(\['y'\], {{'x': x}}\); got {name} alone"):
                call(*wrong)
        for swapped in (["y"], "y"):
            with pytest.raises(ortmulti.InvalidType, match=r"must be a (list|dict)|is a dict"):
                call(feed(3), swapped)
    for several in (pool.map, pool.as_completed):
        for feeds, name in ((feed(3), "dict"), (None, "None"), (3, "int")):
            with pytest.raises(ortmulti.InvalidType, match=f"iterable of dicts, one for each run, not {name}"):
                several(feeds)
        with pytest.raises(ortmulti.InvalidType, match=r"must be a dict .* not .*ndarray"):
            next(several([x]))
        with pytest.raises(ortmulti.InvalidType):
            next(several([feed(3)], iter(["y"])))


def test_every_call_has_the_same_arguments() -> None:
    """By position onnxruntime's; what is for all of them comes last."""
    own = {"run": [], "submit": ["when_full"], "run_async": ["when_full"], "map": ["lookahead"]}
    for name, more in {**own, "as_completed": ["lookahead"]}.items():
        parameters = inspect.signature(getattr(ortmulti.Pool, name)).parameters
        inputs = "feeds" if "lookahead" in more else "input_feed"
        assert list(parameters) == [
            "self",
            "output_names",
            inputs,
            "run_options",
            "outputs",
            *more,
            *Call.__annotations__,
        ]
        for argument in Call.__annotations__:
            assert f"\n    {argument}: " in (inspect.getdoc(getattr(ortmulti.Pool, name)) or "")


def test_several_runs_take_a_device_and_deadlines() -> None:
    feeds = [endless_feed(3), endless_feed()]
    with ortmulti.load(ENDLESS, "cpu") as pool:
        answers = pool.map(["y"], feeds, device="cpu", timeout=0.2)
        assert next(answers)[0].tolist() == [3]
        with pytest.raises(ortmulti.DeadlineExceeded):
            next(answers)
        failures = {index: future.exception() for index, future in pool.as_completed(None, feeds, timeout=0.2)}
        assert [type(failures[index]) for index in range(2)] == [type(None), ortmulti.DeadlineExceeded]
        for several in (pool.map, pool.as_completed):
            with pytest.raises(ortmulti.InvalidArgument, match="no session on cuda:7"):
                next(several(feeds, device=7))
            with pytest.raises(ortmulti.InvalidType, match="timeout"):
                several(feeds, timeout="1")


def test_map_keeps_the_order_and_looks_ahead_no_further(pool: ortmulti.Pool) -> None:
    taken = []

    def feeds() -> Iterator[dict[str, np.ndarray]]:
        for number in range(20):
            taken.append(number)
            yield feed(number)

    results = pool.map(feeds(), lookahead=3)
    assert not taken
    for number in range(20):
        np.testing.assert_array_equal(next(results)[0], answer(number))
        assert len(taken) <= number + 3
    assert next(results, None) is None


def test_map_raises_the_first_failure_in_its_place(pool: ortmulti.Pool) -> None:
    feeds = [feed(0), {"x": np.zeros((2, 2, 2), np.float32)}, feed(2)]
    results = pool.map(feeds)
    next(results)
    with pytest.raises(ortmulti.InvalidArgument):
        next(results)
    assert list(results) == []


def test_as_completed_gives_each_once_with_its_place(pool: ortmulti.Pool) -> None:
    results = dict(pool.as_completed((feed(number) for number in range(30)), lookahead=4))
    assert sorted(results) == list(range(30))
    for number, future in results.items():
        np.testing.assert_array_equal(future.result()[0], answer(number))


def test_cancelling_ends_what_runs_and_what_waits(endless: ortmulti.Pool) -> None:
    running = busy(endless)
    waiting = endless.submit(None, endless_feed())
    assert waiting.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result()
    assert endless.stats().cancelled_waiting == 1
    assert running.cancel()
    assert running.cancelled()
    endless.close()  # which returns, since the run was ended
    assert endless.stats().devices[0].cancelled == 1


def test_a_deadline_ends_what_runs_and_what_waits(endless: ortmulti.Pool) -> None:
    running = endless.submit(None, endless_feed(), timeout=0.1)
    waiting = endless.submit(None, endless_feed(), timeout=0.05)
    for future, message in (
        (running, "was not answered within 100 ms"),
        (waiting, r"still waited .* after (49|5\d|[6-9]\d|\d{3,})[. ]"),
    ):
        with pytest.raises(ortmulti.DeadlineExceeded, match=message):
            future.result()
    _wait_until_idle(endless)  # else the next one may still wait when its time is over
    with pytest.raises(TimeoutError):
        endless.run(None, endless_feed(), timeout=0.05)
    _wait_until_idle(endless)
    with pytest.raises(ortmulti.DeadlineExceeded):
        asyncio.run(endless.run_async(None, endless_feed(), timeout=0.05))
    assert endless.run(None, endless_feed(3))[0].tolist() == [3]  # the session is free again
    [device] = endless.stats().devices
    assert (device.done, device.failed) == (1, 3)


def _wait_until_idle(pool: ortmulti.Pool) -> None:
    while pool.stats().devices[0].busy:
        pass


def test_a_deadline_frees_the_caller_of_a_run_that_goes_on() -> None:
    options = ortmulti.RunOptions()  # of the caller's own: the pool does not end the run
    with ortmulti.load(ENDLESS, "cpu") as pool:
        asks: tuple[Callable[[], object], ...] = (
            lambda: pool.run(None, endless_feed(), options, timeout=0.05),
            lambda: pool.submit(None, endless_feed(), options, timeout=0.05).result(HANG),
            lambda: asyncio.run(pool.run_async(None, endless_feed(), options, timeout=0.05)),
        )
        for number, ask in enumerate(asks, start=1):
            with pytest.raises(ortmulti.DeadlineExceeded, match="was not answered within 50 ms"):
                ask()
            [device] = pool.stats().devices
            assert (device.busy, device.failed, device.done) == (1, number, 0)
            options.terminate = True
            _wait_until_idle(pool)
            options.terminate = False
        assert pool.run(None, endless_feed(3))[0].tolist() == [3]
    [device] = pool.stats().devices
    assert (device.failed, device.done, device.run.count) == (3, 1, 4)


def test_what_would_be_late_is_refused_if_asked_for() -> None:
    with ortmulti.load(ENDLESS, "cpu", in_flight=1, loading=ortmulti.Loading(when_late="reject")) as pool:
        for _ in range(9):
            pool.run(endless_feed(300_000))
        half = pool.stats().devices[0].run.p50 / 2
        running = busy(pool)
        asks: tuple[Callable[..., object], ...] = (pool.submit, pool.run)
        for ask in asks:
            with pytest.raises(ortmulti.DeadlineExceeded, match=r"would not be answered .* a run takes \d+ ms: give"):
                ask(endless_feed(1), timeout=half)
        assert pool.stats().rejected == 2
        running.cancel()
        assert pool.run(endless_feed(1), timeout=HANG)[0].tolist() == [1]
    with pytest.raises(ortmulti.InvalidArgument, match="when_late is 'try' or 'reject', not 'drop'"):
        ortmulti.load(ENDLESS, "cpu", loading=ortmulti.Loading(when_late="drop"))  # type: ignore[arg-type, unused-ignore]


def test_higher_priorities_begin_first(endless: ortmulti.Pool) -> None:
    running = busy(endless)
    ended: list[int] = []
    futures = []
    for priority in (-1, 5):
        futures.append(endless.submit(None, endless_feed(1), priority=priority))
        futures[-1].add_done_callback(functools.partial(lambda priority, _: ended.append(priority), priority))
    running.cancel()
    concurrent.futures.wait(futures, timeout=HANG)
    endless.submit(None, endless_feed(1)).result(HANG)  # callbacks of those before have been called
    assert ended == [5, -1]


def test_a_full_queue_gives_up_a_lower_priority(endless: ortmulti.Pool) -> None:
    running = busy(endless)
    first, last = (endless.submit(None, endless_feed(1)) for _ in range(2))
    higher = endless.submit(None, endless_feed(1), priority=1, when_full="reject")
    with pytest.raises(ortmulti.QueueFull, match="of priority 1 took the place of this one, of priority 0"):
        last.result(HANG)
    with pytest.raises(ortmulti.QueueFull, match="2 requests wait"):
        endless.submit(None, endless_feed(1), when_full="reject")
    running.cancel()
    assert [future.result(HANG)[0].tolist() for future in (first, higher)] == [[1], [1]]
    assert endless.stats().failed_waiting == 1


def test_a_full_queue_refuses_waits_or_takes(endless: ortmulti.Pool) -> None:
    running = busy(endless)
    waiting = [endless.submit(None, endless_feed()) for _ in range(2)]
    with pytest.raises(ortmulti.QueueFull, match="2 requests wait"):
        endless.submit(None, endless_feed(), when_full="reject")
    with pytest.raises(ortmulti.QueueFull):
        endless.submit(None, endless_feed(), when_full=0.05)
    assert endless.stats().rejected == 2
    blocked: list[ortmulti.PoolFuture] = []
    thread = threading.Thread(target=lambda: blocked.append(endless.submit(None, endless_feed())))
    thread.start()
    assert waiting[0].cancel()
    thread.join()  # there was room for it
    for future in [running, *waiting, *blocked]:
        future.cancel()


def test_run_options_terminate_a_submitted_run() -> None:
    options = ortmulti.RunOptions()
    with ortmulti.load(ENDLESS, "cpu") as pool:
        future = pool.submit(None, endless_feed(), options)
        while pool.stats().devices[0].busy == 0:
            pass
        options.terminate = True
        with pytest.raises(ortmulti.Error, match="terminate"):
            future.result()


def test_run_async_refuses_when_told_to(endless: ortmulti.Pool) -> None:
    async def ask() -> None:
        futures = [busy(endless), *(endless.submit(None, endless_feed()) for _ in range(2))]
        with pytest.raises(ortmulti.QueueFull):
            await endless.run_async(None, endless_feed(), when_full="reject")
        for future in futures:
            future.cancel()

    asyncio.run(ask())


def test_close_answers_what_was_asked_for() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu", 2) as pool:
        expected = [answer(number) for number in range(200)]
        futures = [pool.submit(None, feed(number)) for number in range(200)]
    for future, wanted in zip(futures, expected, strict=True):
        np.testing.assert_array_equal(future.result()[0], wanted)
    pool.close(cancel_pending=True)
    assert pool.closed
    for call in (lambda: pool.run(feed(0)), lambda: pool.submit(feed(0)), pool.warmup):
        with pytest.raises(ortmulti.ClosedError, match="the pool is closed"):
            call()
    assert pool.stats().devices[0].done == 200
    assert pool.devices == ["cpu"] * 2


def test_close_cancels_what_waits_if_asked_to(endless: ortmulti.Pool) -> None:
    running = busy(endless)
    waiting = endless.submit(None, endless_feed())
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        mapped = threads.submit(lambda: list(endless.map([endless_feed()])))
        while endless.stats().waiting < 2:
            pass
        closing = threading.Thread(target=endless.close, kwargs={"cancel_pending": True})
        closing.start()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(HANG)
        concurrent.futures.wait([waiting], timeout=HANG)
        error = mapped.exception(HANG)
    running.cancel()
    closing.join()
    assert waiting.cancelled()
    assert isinstance(error, ortmulti.ClosedError)  # as of `run`


def test_arrays_are_held_until_they_are_used_and_no_longer(pool: ortmulti.Pool) -> None:
    class Array(np.ndarray):
        """One that can be referred to weakly."""

    array = feed(3)["x"].view(Array)
    seen = weakref.ref(array)
    future = pool.submit(None, {"x": array})
    del array
    np.testing.assert_array_equal(future.result()[0], answer(3))
    pool.close()
    gc.collect()
    assert seen() is None


def test_a_callback_may_wait_for_a_run_that_has_to_be_ended(endless: ortmulti.Pool) -> None:
    ended: concurrent.futures.Future[BaseException | None] = concurrent.futures.Future()

    def ask(_: object) -> None:
        try:
            endless.run(None, endless_feed(), timeout=0.1)
        except ortmulti.DeadlineExceeded as error:
            ended.set_result(error)

    endless.submit(None, endless_feed(1)).add_done_callback(ask)
    assert "within 100 ms" in str(ended.result(60))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timeout": -1}, "timeout is 0 or more"),
        ({"timeout": "1"}, "timeout is a number"),
        ({"timeout": True}, "timeout is a number"),
        ({"timeout": float("nan")}, "timeout is a finite number of 0 or more"),
        ({"priority": "high"}, "priority is an int, not 'high'"),
        ({"priority": None}, "priority is an int, not None"),
        ({"priority": 1 << 31}, "priority is -2147483647 to 2147483647"),
        ({"device": "tpu"}, "tpu"),
        ({"device": "cuda:9"}, "cuda:9"),
        ({"when_full": "wait"}, "when_full"),
        ({"when_full": -0.5}, "when_full"),
        ({"when_full": None}, "when_full"),
    ],
)
def test_bad_arguments_are_refused(pool: ortmulti.Pool, arguments: dict[str, object], message: str) -> None:
    with pytest.raises((ortmulti.InvalidArgument, ortmulti.DeviceError), match=message):
        pool.submit(None, feed(0), **arguments)
    np.testing.assert_array_equal(pool.run(None, feed(1))[0], answer(1))


@pytest.mark.parametrize("call", ["run", "submit"])
def test_bad_inputs_are_refused_when_they_are_given(pool: ortmulti.Pool, call: str) -> None:
    ask = getattr(pool, call)
    with pytest.raises(ortmulti.InvalidArgument, match="unknown input 'z'"):
        ask(None, {"z": feed(0)["x"]})
    with pytest.raises(ortmulti.InvalidArgument, match=r"Required inputs .*'x'"):
        ask(None, {})
    with pytest.raises(ortmulti.InvalidArgument, match="unknown output 'q'"):
        ask(["q"], feed(0))
    with pytest.raises(ortmulti.InvalidType):
        ask(None, {"x": np.zeros((2, 64), np.int64)})
    with pytest.raises(ortmulti.InvalidType):
        ask("y", feed(0))
    with pytest.raises(ortmulti.InvalidType):
        ask(None, feed(0), "options")


def test_pools_that_are_dropped_leave_nothing_behind() -> None:
    with nothing_leaks():
        for _ in range(20):
            pool = ortmulti.load(onnx_models.matmul(), "cpu", 2)
            pool.submit(None, feed(0), timeout=60).result()
        gone = weakref.ref(pool)
        del pool
        gc.collect()
        assert gone() is None


def test_ctrl_c_ends_a_run_a_wait_for_room_and_a_close() -> None:
    child = run_child(
        """
        import logging
        import signal
        import ortmulti
        from tests.support.pools import ENDLESS, endless_feed

        logging.getLogger("ortmulti.onnxruntime").setLevel(logging.CRITICAL)  # what a run that is ended logs
        x, future = endless_feed(), None
        pool = ortmulti.load(ENDLESS, "cpu", max_queue=0)
        map_one = lambda _, feed: list(pool.map([feed]))  # waits for the answer, and later for room
        for call in (pool.run, map_one, pool.run, pool.submit, map_one, lambda *_: pool.close()):
            if call == pool.submit:
                future = pool.submit(None, x)
            while future is None and pool.stats().devices[0].busy:
                pass  # the run before ends: this one finds the session idle
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                call(None, x)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("not interrupted")
            assert pool.stats().devices[0].done == 0, "ran to its end"
        future.cancel()
        pool.close()
        """
    )
    assert (child.returncode, child.stderr) == (0, "")
