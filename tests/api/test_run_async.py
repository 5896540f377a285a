"""`InferenceSession.run_async`: results that go to a callback."""

from __future__ import annotations

import gc
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from tests.support import onnx_models
from tests.support.processes import nothing_leaks

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
TIMEOUT = 30


class Results:
    """A callback, and what it was called with."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[list[Any], Any, str]] = queue.Queue()

    def __call__(self, results: list[Any], user_data: Any, error: str) -> None:
        self.calls.put((results, user_data, error))

    def next(self) -> tuple[list[Any], Any, str]:
        return self.calls.get(timeout=TIMEOUT)


@pytest.fixture
def results() -> Results:
    return Results()


@pytest.fixture
def session() -> ortmulti.InferenceSession:
    return onnx_models.cpu_session(onnx_models.matmul(8))


def threads_of(count: int) -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = count
    return options


def test_the_callback_gets_what_run_returns(session: ortmulti.InferenceSession, results: Results) -> None:
    mine = object()
    session.run_async(None, {"x": X}, results, mine)
    [y], user_data, error = results.next()
    np.testing.assert_array_equal(y, session.run(None, {"x": X})[0])
    assert user_data is mine
    assert error == ""


def test_arguments_and_results_are_onnxruntimes(results: Results) -> None:
    model = onnx_models.matmul(8)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ours = onnx_models.cpu_session(model)
    for session in (theirs, ours):
        session.run_async(output_names=["y"], input_feed={"x": X}, callback=results, user_data=1, run_options=None)
        session.run_async([], {"x": X}, results, 2)
    calls = sorted((results.next() for _ in range(4)), key=lambda call: call[1])
    for [y], _, error in calls:
        np.testing.assert_array_equal(y, calls[0][0][0])
        assert error == ""
    assert [call[1] for call in calls] == [1, 1, 2, 2]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_pool_of_one_thread_is_enough(threads: int, results: Results) -> None:
    """onnxruntime refuses it there."""
    session = onnx_models.cpu_session(onnx_models.matmul(8), threads_of(threads))
    for i in range(50):
        session.run_async(None, {"x": X + i}, results, i)
    got = {}
    for _ in range(50):
        [y], i, error = results.next()
        assert error == ""
        got[i] = y
    for i in range(50):
        np.testing.assert_allclose(got[i], session.run(None, {"x": X + i})[0], rtol=1e-6)


def test_one_thread_does_them_in_order(results: Results) -> None:
    session = onnx_models.cpu_session(onnx_models.matmul(8), threads_of(1))
    for i in range(100):
        session.run_async(None, {"x": X}, results, i)
    assert [results.next()[1] for _ in range(100)] == list(range(100))


def test_from_many_threads(session: ortmulti.InferenceSession, results: Results) -> None:
    expected = session.run(None, {"x": X})[0]
    begun = threading.Barrier(8)

    def ask(number: int) -> None:
        begun.wait()
        for i in range(50):
            session.run_async(None, {"x": X * number}, results, (number, i))

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for asker in askers:
        asker.start()
    seen = set()
    for _ in range(400):
        [y], (number, i), error = results.next()
        assert error == ""
        np.testing.assert_allclose(y, expected * number, rtol=1e-5, atol=1e-6)
        seen.add((number, i))
    for asker in askers:
        asker.join()
    assert len(seen) == 400
    assert results.calls.empty()


def test_all_callbacks_are_called_by_one_thread(session: ortmulti.InferenceSession) -> None:
    called: queue.Queue[threading.Thread] = queue.Queue()
    for _ in range(20):
        session.run_async(None, {"x": X}, lambda *_: called.put(threading.current_thread()), None)
    callers = {called.get(timeout=TIMEOUT) for _ in range(20)}
    assert len(callers) == 1
    assert threading.main_thread() not in callers


# --- What goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "feed", "error"),
    [
        (None, {}, ortmulti.InvalidArgument),
        (None, {"z": X}, ortmulti.InvalidArgument),
        (["z"], {"x": X}, ortmulti.InvalidArgument),
        ("y", {"x": X}, ortmulti.InvalidType),
        (None, {"x": X.astype(np.float64)}, ortmulti.InvalidType),
        (None, [X], ortmulti.InvalidType),
        ([1], {"x": X}, ortmulti.InvalidType),
    ],
)
def test_arguments_that_cannot_be_run(
    session: ortmulti.InferenceSession, results: Results, names: Any, feed: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        session.run_async(names, feed, results, None)
    session.run_async(None, {"x": X}, results, "next")
    assert results.next()[1] == "next", "the callback of a call that raised was called"


@pytest.mark.parametrize("callback", [None, 5, "f"])
def test_what_is_no_callback(session: ortmulti.InferenceSession, callback: Any) -> None:
    with pytest.raises(ortmulti.InvalidType, match="callback"):
        session.run_async(None, {"x": X}, callback, None)


def test_what_are_no_run_options(session: ortmulti.InferenceSession, results: Results) -> None:
    with pytest.raises(ortmulti.InvalidType, match="RunOptions"):
        session.run_async(None, {"x": X}, results, None, onnxruntime.SessionOptions())


def test_onnxruntimes_run_options(session: ortmulti.InferenceSession, results: Results) -> None:
    options = onnxruntime.RunOptions()
    session.run_async(None, {"x": X}, results, None, options)
    assert results.next()[2] == ""
    options.terminate = True
    session.run_async(None, {"x": X}, results, None, options)
    assert "terminate" in results.next()[2]


def test_a_run_that_fails(session: ortmulti.InferenceSession, results: Results) -> None:
    session.run_async(None, {"x": X[:, :5]}, results, "data")
    outputs, user_data, error = results.next()
    assert outputs == []
    assert user_data == "data"
    with pytest.raises(ortmulti.InvalidArgument) as caught:
        session.run(None, {"x": X[:, :5]})
    assert str(caught.value) == f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : {error}"  # onnxruntime's has none either


def test_a_run_that_is_terminated(session: ortmulti.InferenceSession, results: Results) -> None:
    options = ortmulti.RunOptions()
    options.terminate = True
    session.run_async(None, {"x": X}, results, None, options)
    outputs, _, error = results.next()
    assert outputs == []
    assert "terminate" in error


def test_a_long_run_is_terminated_by_its_options(results: Results) -> None:
    session = onnx_models.cpu_session(onnx_models.endless())
    options = ortmulti.RunOptions()
    session.run_async(None, {"count": np.array(onnx_models.LONG), "x": np.ones(3, np.float32)}, results, None, options)
    options.terminate = True
    del options  # the run keeps them
    outputs, _, error = results.next()
    assert outputs == []
    assert "terminate" in error


@pytest.mark.parametrize("raised", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_what_a_callback_raises_is_reported(
    session: ortmulti.InferenceSession, results: Results, raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.put((report.exc_value, report.object)))

    def failing(*_: Any) -> None:
        raise raised

    session.run_async(None, {"x": X}, failing, None)
    value, source = reported.get(timeout=TIMEOUT)
    assert value is raised
    assert source is failing
    session.run_async(None, {"x": X}, results, "next")
    assert results.next()[1:] == ("next", "")
    monkeypatch.undo()


# --- Lifetimes --------------------------------------------------------------------------------------------------------


class Blocked:
    """Keeps the thread of the callbacks until it is left, so that nothing is delivered meanwhile."""

    def __init__(self, session: ortmulti.InferenceSession) -> None:
        self._go_on = threading.Event()
        begun = threading.Event()

        def wait(*_: Any) -> None:
            begun.set()
            self._go_on.wait(TIMEOUT)

        session.run_async(None, {"x": X}, wait, None)
        assert begun.wait(TIMEOUT)

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None:
        self._go_on.set()


def test_what_is_given_is_held_until_it_is_delivered(session: ortmulti.InferenceSession) -> None:
    class Array(np.ndarray[Any, Any]):
        pass

    class Data:
        pass

    x, data, delivered = X.copy().view(Array), Data(), threading.Event()
    options = ortmulti.RunOptions()

    def callback(*_: Any) -> None:
        delivered.set()

    watched: list[Callable[[], object]] = [weakref.ref(x), weakref.ref(data), weakref.ref(callback)]
    after = threading.Event()
    with Blocked(session):
        session.run_async(None, {"x": x}, callback, data, options)
        session.run_async(None, {"x": X}, lambda *_: after.set(), None)
        del x, data, callback, options
        gc.collect()
        assert all(reference() is not None for reference in watched)
    assert after.wait(TIMEOUT)
    assert delivered.is_set()
    gc.collect()
    assert [reference() for reference in watched] == [None, None, None]


def test_the_session_is_held_too(results: Results) -> None:
    onnx_models.cpu_session(onnx_models.matmul(8)).run_async(None, {"x": X}, results, None)
    gc.collect()
    assert results.next()[0][0].shape == (4, 8)


def test_results_outlive_the_session(results: Results) -> None:
    session = onnx_models.cpu_session(onnx_models.matmul(8))
    expected = session.run(None, {"x": X})[0]
    session.run_async(None, {"x": X}, results, None)
    session.close()
    [y], _, _ = results.next()
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("threads", [1, 4])
def test_close_waits_for_what_was_asked_for(threads: int, results: Results) -> None:
    session = onnx_models.cpu_session(onnx_models.matmul(8), threads_of(threads))
    for i in range(100):
        session.run_async(None, {"x": X}, results, i)
    session.close()
    calls = [results.next() for _ in range(100)]
    assert {call[2] for call in calls} == {""}
    assert sorted(call[1] for call in calls) == list(range(100))
    with pytest.raises(ortmulti.ClosedError):
        session.run_async(None, {"x": X}, results, None)


def test_a_callback_may_close_its_session(session: ortmulti.InferenceSession, results: Results) -> None:
    asked = threading.Event()

    def close(*call: Any) -> None:
        asked.wait(TIMEOUT)
        session.close()
        results(*call)

    for i in range(10):
        session.run_async(None, {"x": X}, close, i)
    asked.set()
    calls = [results.next() for _ in range(10)]
    assert {call[2] for call in calls} == {""}
    assert session.closed


def test_a_callback_may_ask_for_more(session: ortmulti.InferenceSession, results: Results) -> None:
    def again(outputs: list[Any], left: int, error: str) -> None:
        if left:
            session.run_async(None, {"x": X}, again, left - 1)
        else:
            results(outputs, left, error)

    session.run_async(None, {"x": X}, again, 20)
    assert results.next()[1:] == (0, "")


def test_close_while_others_ask(results: Results) -> None:
    """Whoever was taken is told; whoever was not gets ClosedError."""
    for _ in range(10):
        session = onnx_models.cpu_session(onnx_models.matmul(8), threads_of(2))
        taken = []
        begun = threading.Barrier(5)

        def ask(session: ortmulti.InferenceSession, begun: threading.Barrier, taken: list[int]) -> None:
            begun.wait()
            for i in range(200):
                try:
                    session.run_async(None, {"x": X}, results, i)
                except ortmulti.ClosedError:
                    return
                taken.append(i)

        askers = [threading.Thread(target=ask, args=(session, begun, taken)) for _ in range(4)]
        for asker in askers:
            asker.start()
        begun.wait()
        session.close()
        for asker in askers:
            asker.join()
        calls = [results.next() for _ in taken]
        assert {call[2] for call in calls} <= {""}
        assert results.calls.empty()


def test_closed_sessions_leave_no_threads(session: ortmulti.InferenceSession, results: Results) -> None:
    session.run_async(None, {"x": X}, results, None)  # the thread of the callbacks stays
    results.next()
    with nothing_leaks():
        for _ in range(5):
            with onnx_models.cpu_session(onnx_models.matmul(8), threads_of(3)) as other:
                for i in range(20):
                    other.run_async(None, {"x": X}, results, i)
        for _ in range(100):
            results.next()
