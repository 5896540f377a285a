"""`InferenceSession.run_async`: results that go to a callback."""

from __future__ import annotations

import gc
import queue
import sys
import threading
import weakref
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from tests.support import onnx_models
from tests.support.lifetimes import alive
from tests.support.pools import in_threads
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


def test_arguments_and_results_are_onnxruntimes_and_those_of_run(
    session: ortmulti.InferenceSession, results: Results
) -> None:
    theirs = onnxruntime.InferenceSession(onnx_models.matmul(8), providers=["CPUExecutionProvider"])
    expected = theirs.run(None, {"x": X})[0]
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
    mine = object()
    for each in (theirs, session):
        each.run_async(output_names=["y"], input_feed={"x": X}, callback=results, user_data=mine, run_options=None)
        each.run_async([], {"x": X}, results, mine)
    for _ in range(4):
        [y], user_data, error = results.next()
        np.testing.assert_array_equal(y, expected)
        assert user_data is mine
        assert error == ""


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_close_waits_for_what_was_asked_for(threads: int, results: Results) -> None:
    """One thread is enough, which onnxruntime refuses, and does them in order."""
    session = onnx_models.cpu_session(onnx_models.matmul(8), onnx_models.options(intra_op_num_threads=threads))
    expected = [session.run(None, {"x": X + i})[0] for i in range(50)]
    for i in range(50):
        session.run_async(None, {"x": X + i}, results, i)
    session.close()
    calls = [results.next() for _ in range(50)]
    assert {error for _, _, error in calls} == {""}
    order = [i for _, i, _ in calls]
    assert (order if threads == 1 else sorted(order)) == list(range(50))
    for [y], i, _ in calls:
        np.testing.assert_allclose(y, expected[i], rtol=1e-6)


def test_from_many_threads(session: ortmulti.InferenceSession, results: Results) -> None:
    expected = session.run(None, {"x": X})[0]

    def ask(number: int) -> None:
        for i in range(50):
            session.run_async(None, {"x": X * number}, results, (number, i))

    in_threads(8, ask)
    seen = set()
    for _ in range(400):
        [y], (number, i), error = results.next()
        assert error == ""
        np.testing.assert_allclose(y, expected * number, rtol=1e-5, atol=1e-6)
        seen.add((number, i))
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
    ("changed", "error", "message"),
    [
        ({"input_feed": {}}, ortmulti.InvalidArgument, "Required inputs"),
        ({"input_feed": {"z": X}}, ortmulti.InvalidArgument, "'z'"),
        ({"output_names": ["z"]}, ortmulti.InvalidArgument, "'z'"),
        ({"output_names": "y"}, ortmulti.InvalidType, "output_names"),
        ({"output_names": [1]}, ortmulti.InvalidType, "must be a str"),
        ({"input_feed": {"x": X.astype(np.float64)}}, ortmulti.InvalidType, "float64"),
        ({"input_feed": [X]}, ortmulti.InvalidType, "dict"),
        ({"callback": None}, ortmulti.InvalidType, "callback"),
        ({"callback": "f"}, ortmulti.InvalidType, "callback"),
        ({"run_options": onnxruntime.SessionOptions()}, ortmulti.InvalidType, "RunOptions"),
    ],
)
def test_arguments_that_cannot_be_run(
    session: ortmulti.InferenceSession, results: Results, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"output_names": None, "input_feed": {"x": X}, "callback": results, "user_data": None, **changed}
    with pytest.raises(error, match=message):
        session.run_async(**given)
    session.run_async(None, {"x": X}, results, "next")
    assert results.next()[1] == "next", "the callback of a call that raised was called"


@pytest.mark.parametrize("package", [onnxruntime, ortmulti])
def test_a_run_that_is_terminated(session: ortmulti.InferenceSession, results: Results, package: Any) -> None:
    options = package.RunOptions()
    session.run_async(None, {"x": X}, results, None, options)
    assert results.next()[2] == ""
    options.terminate = True
    session.run_async(None, {"x": X}, results, None, options)
    outputs, _, error = results.next()
    assert outputs == []
    assert "terminate" in error


def test_a_run_that_fails(session: ortmulti.InferenceSession, results: Results) -> None:
    session.run_async(None, {"x": X[:, :5]}, results, "data")
    outputs, user_data, error = results.next()
    assert outputs == []
    assert user_data == "data"
    with pytest.raises(ortmulti.InvalidArgument) as caught:
        session.run(None, {"x": X[:, :5]})
    assert str(caught.value) == f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : {error}"  # onnxruntime's has none either


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


def test_what_is_given_is_held_until_it_is_delivered(session: ortmulti.InferenceSession) -> None:
    class Array(np.ndarray[Any, Any]):
        pass

    class Data:
        pass

    x, data = X.copy().view(Array), Data()
    options = ortmulti.RunOptions()
    begun, go_on, delivered, after = (threading.Event() for _ in range(4))

    def wait(*_: Any) -> None:
        begun.set()
        go_on.wait(TIMEOUT)

    def callback(*_: Any) -> None:
        delivered.set()

    watched = [weakref.ref(each) for each in (x, data, callback)]
    # The thread of the callbacks waits, so that nothing is delivered meanwhile.
    session.run_async(None, {"x": X}, wait, None)
    assert begun.wait(TIMEOUT)
    session.run_async(None, {"x": x}, callback, data, options)
    del x, data, callback, options
    assert alive(*watched) == [True, True, True]
    go_on.set()
    assert delivered.wait(TIMEOUT)
    session.run_async(None, {"x": X}, lambda *_: after.set(), None)
    assert after.wait(TIMEOUT)
    assert alive(*watched) == [False, False, False]


def test_the_session_is_held_too(results: Results) -> None:
    onnx_models.cpu_session(onnx_models.matmul(8)).run_async(None, {"x": X}, results, None)
    gc.collect()
    assert results.next()[0][0].shape == (4, 8)


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
        session = onnx_models.cpu_session(onnx_models.matmul(8), onnx_models.options(intra_op_num_threads=2))

        def ask(number: int, session: ortmulti.InferenceSession = session) -> int:
            if number == 0:
                session.close()
                return 0
            for taken in range(200):
                try:
                    session.run_async(None, {"x": X}, results, taken)
                except ortmulti.ClosedError:
                    return taken
            return 200

        calls = [results.next() for _ in range(sum(in_threads(5, ask)))]
        assert {call[2] for call in calls} <= {""}
        assert results.calls.empty()


def test_closed_sessions_leave_no_threads(session: ortmulti.InferenceSession, results: Results) -> None:
    session.run_async(None, {"x": X}, results, None)  # the thread of the callbacks stays
    results.next()
    with nothing_leaks():
        for _ in range(5):
            with onnx_models.cpu_session(onnx_models.matmul(8), onnx_models.options(intra_op_num_threads=3)) as other:
                for i in range(20):
                    other.run_async(None, {"x": X}, results, i)
        for _ in range(100):
            results.next()
