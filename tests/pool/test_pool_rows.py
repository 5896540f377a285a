"""Arrays that a pool runs a few rows at a time: `Pool.map_rows`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import Batching
from ortmulti.pool import many
from tests.support import onnx_models, pools

AB = {name: np.random.default_rng(3).standard_normal((50, 8), dtype=np.float32) for name in "ab"}


def of_rows(op: str, declare: Callable[..., Any] = helper.make_tensor_value_info, **attributes: Any) -> bytes:
    """ "y" = op("x"), "x" float32 [n, 2], with nothing said of the shape of "y"."""
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    model = onnx_models.model([node], [("x", TensorProto.FLOAT, ["n", 2])], [])
    model.graph.output.append(declare("y", TensorProto.FLOAT, None))
    return model.SerializeToString()


def test_answers_are_joined_in_order() -> None:
    with ortmulti.load(onnx_models.add_mul(), "cpu", 2) as pool:
        total, product, first = pool.map_rows(AB, rows=7)
        [one] = pool.map_rows(["product"], AB, rows=50)
        assert sum(device.done for device in pool.stats().devices) == 8 + 1
    np.testing.assert_array_equal(total, AB["a"] + AB["b"])
    np.testing.assert_array_equal(product, AB["a"] * AB["b"])
    np.testing.assert_array_equal(first, AB["a"])
    np.testing.assert_array_equal(one, product)


@pytest.mark.parametrize("sessions", [1, 2])
def test_the_size_of_the_runs_grows(sessions: int) -> None:
    arrays = {name: np.tile(array, (400, 1)) for name, array in AB.items()}
    with ortmulti.load(onnx_models.add_mul(), "cpu", sessions, warmup=True) as pool:
        total, _, first = pool.map_rows(arrays)
        assert pool.stats().devices[0].done < 20_000 / 64
    np.testing.assert_array_equal(total, arrays["a"] + arrays["b"])
    np.testing.assert_array_equal(first, arrays["a"])


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        (lambda rows: 20e-6 + 1e-6 * rows, 1024),  # runs of a millisecond
        (lambda rows: 100e-6 * rows * (1 if rows <= 64 else 1.5), 64),  # the caches are full
        (lambda rows: 10e-3 + 40e-6 * rows, 8192),  # a large model, whose weights are read once a run
    ],
)
def test_the_found_size_is_a_fast_one(seconds: Callable[[int], float], found: int) -> None:
    size = many.RunSize()
    for run in range(100):
        late = 5e-3 if run % 3 == 0 else 0.0  # another process had the processor
        size.record(size.rows, seconds(size.rows) + late)
        size.record(1, 1.0)  # the last rows
    assert size.rows == found


def test_no_rows_are_one_empty_run() -> None:
    with ortmulti.load(onnx_models.add_mul(), "cpu") as pool:
        outputs = pool.map_rows({name: array[:0] for name, array in AB.items()})
    assert [(y.shape, y.dtype) for y in outputs] == [((0, 8), np.dtype(np.float32))] * 3


def test_strings_and_lists_are_rows_too() -> None:
    names = ["a", "bc", "", "d"]
    with ortmulti.load(onnx_models.identity(TensorProto.STRING), "cpu") as pool:
        [found] = pool.map_rows({"x": names}, rows=3)
    assert found.tolist() == names


def test_runs_of_rows_are_joined_to_batches() -> None:
    with ortmulti.load(onnx_models.add_mul(), "cpu", batching=Batching(10, max_delay_ms=60_000)) as pool:
        [first] = pool.map_rows(["first"], AB, rows=2)
        assert pool.stats().devices[0].runs == 5
        [again] = pool.map_rows(["first"], AB)
        assert pool.stats().devices[0].runs == 5 + 5
    np.testing.assert_array_equal(first, AB["a"])
    np.testing.assert_array_equal(again, AB["a"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (of_rows("ReduceSum", keepdims=0), "output 'y' has no rows: ReduceSum 'y' computes over the batch"),
        (of_rows("Transpose"), "output 'y' has the rows along dimension 1, not 0"),
        (of_rows("SplitToSequence", helper.make_tensor_sequence_value_info), "from row 0 on is list, not"),
    ],
)
def test_outputs_without_the_rows_are_refused(model: bytes, message: str) -> None:
    x = np.zeros((5, 2), np.float32)
    with ortmulti.load(model, "cpu") as pool:
        with pytest.raises(ortmulti.InvalidArgument, match=message):
            pool.map_rows({"x": x}, rows=2)
        assert pool.run({"x": x})  # as a request of its own


def test_rows_that_depend_on_each_other_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    path = onnx_models.with_weights(
        "(float[n,2] x) => (float[n,2] y, float[n,2] z) { y = Softmax <axis = 0> (x)\n z = Softmax <axis = 1> (x) }"
    )
    with ortmulti.load(path, "cpu") as pool:
        pool.map_rows(["z"], {"x": np.zeros((3, 2), np.float32)})
        assert not caplog.records
        for _ in range(2):
            pool.map_rows({"x": np.zeros((3, 2), np.float32)})
    [record] = caplog.records
    assert "output 'y' depends on the other rows: Softmax 'y' normalizes over the batch" in record.getMessage()
    assert "give rows=" in record.getMessage()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "the shapes are: none"),
        ({"a": AB["a"], "b": AB["b"][1:]}, r"'a' \(50, 8\), 'b' \(49, 8\)"),
        ({"a": AB["a"], "b": np.float32(1)}, r"'b' \(\)"),
        ({"a": 1}, r"'a' \(\)"),
        ([AB], "a dict of their names and values.* got list alone"),
        (None, "got None alone"),
    ],
)
def test_arrays_without_common_rows_are_refused(arrays: object, message: str) -> None:
    with ortmulti.load(onnx_models.add_mul(), "cpu") as pool:
        with pytest.raises(ortmulti.InvalidArgument, match=message):
            pool.map_rows(arrays)
        for rows in (0, 1.5):
            with pytest.raises(ortmulti.InvalidArgument, match="rows"):
                pool.map_rows(AB, rows=rows)


def test_a_run_that_fails_ends_the_others() -> None:
    numbers = np.array([1, 2, 3, 99, 4, 5, 6, 7] * 100)
    with ortmulti.load(pools.rows(), "cpu") as pool:
        with pytest.raises(ortmulti.Error, match="99"):
            pool.map_rows({"x": numbers}, rows=1, lookahead=10)
        assert pools.counted(pool) <= 3 + 10


class SlowRows:
    """Rows of zeros, of which the second comes when a time has passed."""

    def __init__(self, until: float) -> None:
        self.shape = (2, 64)
        self._until = until

    def __getitem__(self, rows: slice) -> np.ndarray:
        while rows.start == 1 and time.monotonic() < self._until:
            pass
        return np.zeros((1, 64), np.float32)


def test_the_timeout_is_for_all_rows() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu", warmup=True) as pool:
        [y] = pool.map_rows({"x": SlowRows(time.monotonic() + 0.1)}, rows=1, timeout=60)
        assert y.shape == (2, 64)
        with pytest.raises(ortmulti.DeadlineExceeded):
            pool.map_rows({"x": SlowRows(time.monotonic() + 0.1)}, rows=1, timeout=0.05)


@pytest.mark.parametrize("sessions", [1, 2])
def test_progress_counts_rows_and_may_end_the_call(sessions: int) -> None:
    seen: list[tuple[int, int]] = []
    x = np.ones((100, 64), np.float32)
    with ortmulti.load(onnx_models.matmul(), "cpu", sessions) as pool:
        pool.map_rows({"x": x}, rows=30, progress=lambda *done: seen.append(done))
        assert seen == [(30, 100), (60, 100), (90, 100), (100, 100)]
        with pytest.raises(ZeroDivisionError):
            pool.map_rows({"x": x}, rows=30, progress=lambda done, _rows: 1 // (done - 60))
        with pytest.raises(ortmulti.InvalidArgument, match="progress is a function of the rows that are done"):
            pool.map_rows({"x": x}, progress=True)
