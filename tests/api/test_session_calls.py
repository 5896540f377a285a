"""What a session's providers can be told, beside onnxruntime."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from ortmulti import _core
from tests.support import onnx_models

RESULT = {"ep": "CPUExecutionProvider", "validators": {"a": "b"}, "results": {}}
X = np.ones((2, 8), np.float32)


@pytest.fixture
def session() -> ortmulti.InferenceSession:
    return onnx_models.cpu_session(onnx_models.matmul(8))


@pytest.fixture
def theirs() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(onnx_models.matmul(8), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "names",
    [lambda: ("y",), lambda: {"y": 1}.keys(), lambda: {"y"}, lambda: (name for name in ["y"]), lambda: map(str, ["y"])],
    ids=["tuple", "keys", "set", "generator", "map"],
)
def test_output_names_are_any_iterable(names: Callable[[], Any], session: Any, theirs: Any) -> None:
    expected = theirs.run(["y"], {"x": X})[0]
    [array] = session.run(names(), {"x": X})
    [value] = session.run_with_ort_values(names(), {"x": ortmulti.OrtValue.ortvalue_from_numpy(X)})
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(value.numpy(), expected)
    calls: queue.Queue[Any] = queue.Queue()
    session.run_async(names(), {"x": X}, lambda results, _, error: calls.put((results, error)), None)
    [result], error = calls.get(timeout=60)
    assert error == ""
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("wrong", ["y", b"y", {"y": 1}, 7])
def test_output_names_that_are_none(wrong: Any, session: Any, theirs: Any) -> None:
    for package, each in ((onnxruntime, theirs), (ortmulti, session)):
        value = package.OrtValue.ortvalue_from_numpy(X)
        with pytest.raises(TypeError):
            each.run(wrong, {"x": X})
        with pytest.raises(TypeError):
            each.run_with_ort_values(wrong, {"x": value})
        with pytest.raises(TypeError):
            each.run_async(wrong, {"x": X}, print, None)


def test_a_pool_takes_no_output_names_that_can_be_read_once() -> None:
    with ortmulti.load(onnx_models.matmul(8), "cpu") as pool:
        assert pool.run(("y",), {"x": X})[0].shape == (2, 8)
        for call in (pool.run, pool.submit):
            with pytest.raises(ortmulti.InvalidType, match=r"of a pool must be a list or tuple of str.*generator"):
                call((name for name in ["y"]), {"x": X})


@pytest.mark.parametrize(
    "options", [{"ep.dynamic.workload_type": "Efficient"}, {"no such": "option"}, {"ep.dynamic.workload_type": "none"}]
)
def test_options_that_the_cpu_leaves_aside(session: Any, theirs: Any, options: dict[str, str]) -> None:
    for each in (theirs, session):
        if hasattr(each, "set_ep_dynamic_options"):  # not in older releases of onnxruntime
            assert each.set_ep_dynamic_options(options) is None
    assert session.run(None, {"x": X})[0].shape == (2, 8)


@pytest.mark.parametrize("options", [{}, {"a": 1}, {1: "a"}, [("a", "b")], None])
def test_what_are_no_options(session: ortmulti.InferenceSession, options: Any) -> None:
    with pytest.raises(ortmulti.InvalidArgument if options == {} else ortmulti.InvalidType):
        session.set_ep_dynamic_options(options)


def test_there_are_no_tuning_results(session: Any, theirs: Any) -> None:
    assert session.get_tuning_results() == theirs.get_tuning_results() == []
    for each in (theirs, session):
        assert each.set_tuning_results([]) is None
        assert each.set_tuning_results([], error_on_invalid=True) is None


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "NoSuchExecutionProvider"])
def test_tuning_results_that_cannot_be_used(
    session: Any, theirs: Any, provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    results = [{**RESULT, "ep": provider}]
    for each, error in ((theirs, RuntimeError), (session, ortmulti.Fail)):
        with pytest.raises(error, match=provider):
            each.set_tuning_results(results, error_on_invalid=True)
        with caplog.at_level(logging.WARNING, "ortmulti"):
            each.set_tuning_results(results)
    assert [provider in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    "results", [5, None, "text", {}, [5], [{}], [{"ep": "x"}], [{**RESULT, "ep": 1}], [{**RESULT, "results": 1}]]
)
def test_what_are_no_tuning_results(session: Any, results: Any) -> None:
    with pytest.raises(ortmulti.InvalidArgument):
        session.set_tuning_results(results)


def test_there_is_no_captured_graph_to_release(session: Any, theirs: Any) -> None:
    if tuple(map(int, _core.onnxruntime_version().split(".")[:2])) < (1, 27):
        with pytest.raises(ortmulti.NotImplemented, match=r"1\.27"):
            session.release_captured_graph()
        return
    for each in (theirs, session):
        if not hasattr(each, "release_captured_graph"):  # not in older releases of onnxruntime
            continue
        assert each.release_captured_graph() is None
        assert each.release_captured_graph(graph_annotation_id=7) is None
        with pytest.raises(TypeError):
            each.release_captured_graph("1")
    assert session.run(None, {"x": X})[0].shape == (2, 8)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_numbers_of_more_than_32_bits(session: ortmulti.InferenceSession, number: int) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=f"is -2147483648 to 2147483647, not {number}"):
        session.release_captured_graph(number)
