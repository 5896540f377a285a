"""Requests that are run together."""

from __future__ import annotations

import logging
import logging.handlers
import queue
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import Batching
from tests.support import onnx_models


def rows() -> bytes:
    """y [n, 3] = 2 x [n, 3]; size [n, 3]: the number of rows that were run. It depends on the other rows: trust it."""
    return onnx_models.model(
        [
            helper.make_node("Add", ["x", "x"], ["y"]),
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Slice", ["shape", "zero", "one"], ["rows"]),
            helper.make_node("Expand", ["rows", "shape"], ["size"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 3]), ("size", TensorProto.INT64, ["n", 3])],
        [helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in (("zero", 0), ("one", 1))],
    ).SerializeToString()


def x(count: int, first: float = 0) -> np.ndarray:
    return np.arange(first, first + 3 * count, dtype=np.float32).reshape(count, 3)


def test_requests_are_joined_and_split() -> None:
    with ortmulti.load(rows(), "cpu", batching=Batching(4, max_delay_ms=60_000, trust=True)) as pool:
        futures = [pool.submit(None, {"x": x(1, n)}) for n in range(3)]
        answers = [pool.run(None, {"x": x(1, 3)}), *(future.result() for future in futures)]
        for number, (y, size) in zip((3, 0, 1, 2), answers, strict=True):
            np.testing.assert_array_equal(y, 2 * x(1, number))
            assert size.shape == (1, 3)
            assert (size == 4).all()
        for future in futures:
            timing = future.timing
            assert timing is not None
            assert timing.batch_size == 4
            assert timing.joined > 0  # it waited for the last one
        [device] = pool.stats().devices
        assert (device.runs, device.done) == (1, 4)


@pytest.mark.parametrize("max_size", [2, 4, 8])
def test_any_sizes_get_their_own_answers(max_size: int) -> None:
    sizes = np.random.default_rng(max_size).integers(0, 6, 300).tolist()
    with ortmulti.load(rows(), "cpu", 2, batching=Batching(max_size, max_delay_ms=0.1)) as pool:
        futures = [pool.submit(["y"], {"x": x(size, number)}) for number, size in enumerate(sizes)]
        for number, (size, future) in enumerate(zip(sizes, futures, strict=True)):
            np.testing.assert_array_equal(future.result(60)[0], 2 * x(size, number))
        [device] = pool.stats().devices
        assert device.done == 300
        assert device.runs < 300


def test_a_delay_may_be_any_number() -> None:
    with ortmulti.load(rows(), "cpu", batching=Batching(2, max_delay_ms=1e300, trust=True)) as pool:
        alone = pool.submit(None, {"x": x(1)})
        with pytest.raises(TimeoutError):
            alone.result(0.3)
        for future in (alone, pool.submit(None, {"x": x(1)})):
            _, size = future.result(60)
            assert (size == 2).all()


def test_wrong_shapes_fail_alone() -> None:
    with ortmulti.load(rows(), "cpu", batching=Batching(3, max_delay_ms=50)) as pool:
        good = pool.submit(["y"], {"x": x(1)})
        bad = pool.submit(["y"], {"x": np.zeros((1, 4), np.float32)})
        also_good = pool.submit(["y"], {"x": x(1, 7)})
        np.testing.assert_array_equal(good.result()[0], 2 * x(1))
        np.testing.assert_array_equal(also_good.result()[0], 2 * x(1, 7))
        with pytest.raises(ortmulti.InvalidArgument):
            bad.result()


def without_rows() -> bytes:
    """ "total" [1] = the sum of x [n, 3]: an output that no batch can be split from. And y [n, 3] = 2 x."""
    return onnx_models.model(
        [
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("Unsqueeze", ["sum", "zero"], ["total"]),
            helper.make_node("Add", ["x", "x"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("total", TensorProto.FLOAT, [1]), ("y", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("zero", TensorProto.INT64, [1], [0])],
    ).SerializeToString()


def test_requests_whose_outputs_cannot_be_split_are_joined_once() -> None:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    logging.getLogger("ortmulti").addHandler(handler)
    with ortmulti.load(without_rows(), "cpu", batching=Batching(2, max_delay_ms=60_000, trust=True)) as pool:
        for number, future in enumerate([pool.submit(None, {"x": x(1, n)}) for n in range(2)]):
            total, y = future.result()
            np.testing.assert_array_equal(total, [x(1, number).sum()])
            np.testing.assert_array_equal(y, 2 * x(1, number))
        assert pool.stats().devices[0].runs == 3
        for number in range(3):  # nor does any wait for others to be joined
            np.testing.assert_array_equal(pool.run(None, {"x": x(1, number)})[0], [x(1, number).sum()])
        for future in [pool.submit(["y"], {"x": x(1)}) for n in range(2)]:  # which can be split
            np.testing.assert_array_equal(future.result()[0], 2 * x(1))
        stats = pool.stats()
        assert (stats.devices[0].runs, stats.devices[0].done) == (7, 7)
        assert stats.unbatched == 1
        assert "output 'total' of a batch of 2 cannot be split along dimension 0" in stats.why_unbatched
        assert "ortmulti_runs_unbatched_total 1\n" in stats.prometheus()
        for future in [pool.submit(["total"], {"x": x(1)}) for n in range(2)]:
            future.result()
        assert pool.stats().unbatched == 2
    warning = records.get(timeout=60)  # by another thread
    assert (warning.levelname, warning.name) == ("WARNING", "ortmulti")
    assert "one at a time from now on: output 'total'" in warning.getMessage()
    logging.getLogger("ortmulti").removeHandler(handler)
    assert records.empty()


def test_runs_are_padded_to_given_sizes() -> None:
    batching = Batching(4, max_delay_ms=60_000, sizes=[2, 4], trust=True)
    with ortmulti.load(rows(), "cpu", batching=batching) as pool:
        futures = [pool.submit(None, {"x": x(count, count)}) for count in (1, 3)]
        for count, future in zip((1, 3), futures, strict=True):
            y, size = future.result()
            np.testing.assert_array_equal(y, 2 * x(count, count))
            assert size.shape == (count, 3)
            assert (size == 4).all()
    with ortmulti.load(rows(), "cpu", batching=Batching(4, sizes=(2, 4), trust=True)) as pool:
        for count, run in ((1, 2), (2, 2), (3, 4), (4, 4), (5, 5)):
            y, size = pool.submit(None, {"x": x(count)}).result()
            np.testing.assert_array_equal(y, 2 * x(count))
            assert (size == run).all()


def test_what_cannot_be_split_is_not_padded() -> None:
    with ortmulti.load(without_rows(), "cpu", batching=Batching(4, sizes=[4])) as pool:
        for number in range(3):
            total, y = pool.submit(None, {"x": x(1, number)}).result()
            np.testing.assert_array_equal(y, 2 * x(1, number))
            np.testing.assert_array_equal(total, x(1, number).sum())


def fixed(rows: int) -> bytes:
    """y = 2 x, both float32 [rows, 3]."""
    shape = [("x", TensorProto.FLOAT, [rows, 3])], [("y", TensorProto.FLOAT, [rows, 3])]
    return onnx_models.model([helper.make_node("Add", ["x", "x"], ["y"])], *shape).SerializeToString()


def test_a_model_of_fixed_size_is_batched_only_if_every_run_has_that_size() -> None:
    message = r"input 'x' has the fixed size 1 there: export the model with a dynamic dimension, or .* \(batching=None"
    with pytest.raises(ortmulti.InvalidArgument, match=message):
        ortmulti.load(fixed(1), "cpu", batching=Batching(8))
    with pytest.raises(ortmulti.InvalidArgument, match=r"Or pad every batch: Batching\(max_size=4, sizes=\[4\]\)$"):
        ortmulti.load(fixed(4), "cpu", batching=Batching(8))
    batching = Batching(4, max_delay_ms=60_000, sizes=[4])
    with ortmulti.load(fixed(4), "cpu", batching=batching) as pool:
        futures = [pool.submit(None, {"x": x(2, first)}) for first in (0, 100)]
        for future, first in zip(futures, (0, 100), strict=True):
            np.testing.assert_array_equal(future.result(60)[0], 2 * x(2, first))
        assert pool.stats().devices[0].runs == 1


@pytest.mark.parametrize(
    ("shapes", "batching", "advice"),
    [
        ([["batch", "samples"], [2, "batch", 128]], Batching(8), "export the model with a dynamic dimension"),
        ([["batch", "samples"], [2, "batch", 128]], Batching(2, sizes=[2]), "dynamic dimension"),
        ([["batch", "samples"], [2, "batch", 128], []], Batching(8), "input 'x2' is a scalar, without rows: export"),
        ([[4, 3], [2, 3]], Batching(4, sizes=[4]), "dynamic dimension"),
        (
            [["steps", "batch", 5], [2, "batch", 128]],
            Batching(8),
            r"Or join along dimension 1: Batching\(max_size=8, axis=1\)",
        ),
        ([["batch", 3], ["batch"]], Batching(8, axis=1), r"Or join along dimension 0: Batching\(max_size=8, axis=0\)"),
    ],
)
def test_batching_that_can_never_join_two_requests_is_refused(
    shapes: list[onnx_models.Shape], batching: Batching, advice: str
) -> None:
    inputs = [(f"x{number}", TensorProto.FLOAT, shape) for number, shape in enumerate(shapes)]
    outputs = [(f"y{number}", TensorProto.FLOAT, None) for number in range(len(shapes))]
    nodes = [helper.make_node("Neg", [f"x{number}"], [f"y{number}"]) for number in range(len(shapes))]
    model = onnx_models.model(nodes, inputs, outputs).SerializeToString()
    with pytest.raises(ortmulti.InvalidArgument, match=advice + r"[^:]*$"):
        ortmulti.load(model, "cpu", batching=batching)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_size": 1}, "max_size"),
        ({"max_size": 2.0}, "max_size"),
        ({"max_size": 4, "max_delay_ms": -1}, "max_delay_ms"),
        ({"max_size": 4, "max_delay_ms": "1"}, "max_delay_ms"),
        ({"max_size": 4, "axis": -1}, "axis"),
        ({"max_size": 4, "sizes": [2]}, "sizes"),
        ({"max_size": 4, "sizes": [4, 2]}, "sizes"),
        ({"max_size": 4, "sizes": [0, 4]}, "sizes"),
        ({"max_size": 4, "sizes": 4}, "sizes"),
        ({"max_size": 4, "sizes": "4"}, "sizes"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=message):
        Batching(**arguments)


@pytest.mark.parametrize("way", ["map", "as_completed"])
def test_the_default_lookahead_fills_batches(way: str) -> None:
    with ortmulti.load(rows(), "cpu", batching=Batching(16, max_delay_ms=60_000, trust=True)) as pool:
        feeds = ({"x": x(1, n)} for n in range(160))
        if way == "map":
            found = dict(enumerate(pool.map(feeds)))
        else:
            found = {index: future.result() for index, future in pool.as_completed(feeds)}
        assert 10 <= pool.stats().devices[0].runs <= 12  # smaller runs are tried once
    for number in range(160):
        np.testing.assert_array_equal(found[number][0], 2 * x(1, number))


@pytest.mark.parametrize("columns", [3, 3000])
def test_an_answer_of_a_joint_run_keeps_no_more_memory_than_its_own(columns: int) -> None:
    graph = onnx_models.model(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", columns])],
        [("y", TensorProto.FLOAT, ["n", columns])],
    )
    with ortmulti.load(graph.SerializeToString(), "cpu", batching=Batching(4, max_delay_ms=60_000)) as pool:
        futures = [pool.submit(None, {"x": np.full((1, columns), n, np.float32)}) for n in range(4)]
        answers = [future.result()[0] for future in futures]
        assert pool.stats().devices[0].runs == 1
        for number, answer in enumerate(answers):
            np.testing.assert_array_equal(answer, np.full((1, columns), 2 * number, np.float32))
            assert not any(np.shares_memory(answer, other) for other in answers if other is not answer)
            # Either its own memory, or ONNX Runtime's for this answer alone: never a part of a larger array.
            assert not isinstance(answer.base, np.ndarray)


def test_rows_behind_a_dimension_of_one() -> None:
    model = onnx_models.parsed("(float[1, n, 3] x) => (float[1, n, 3] y) { y = Add(x, x) }").SerializeToString()
    with ortmulti.load(model, "cpu", batching=Batching(6, max_delay_ms=60_000, axis=1)) as pool:
        given = [x(count, 10 * count)[None] for count in (1, 2, 3)]
        for one, [y] in zip(given, pool.map([{"x": one} for one in given]), strict=True):
            np.testing.assert_array_equal(y, 2 * one)
        assert pool.stats().devices[0].batch_size.mean == 3


def test_a_caller_whose_requests_fail_runs_alone() -> None:
    table = numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")
    model = onnx_models.parsed("(int64[n] at) => (float[n] y) { y = Gather(table, at) }", table).SerializeToString()
    good, bad = {"at": np.array([1])}, {"at": np.array([9])}
    with ortmulti.load(model, "cpu", batching=Batching(8)) as pool:

        def fail(**call: Any) -> None:
            with pytest.raises(ortmulti.InvalidArgument, match="9"):
                pool.submit(bad, **call).result(60)

        for _ in range(3):
            fail()  # of nobody in particular
        for caller in ("a", 7):
            assert pool.submit(good, caller=caller).result(60)[0] == 1
        assert pool.stats().apart == 0
        for _ in range(3):
            fail(caller="a")
        assert pool.stats().apart == 1
        pool.submit(good, caller="b").result(60)
        assert pool.stats().apart == 1
        for _ in range(3):
            with pytest.raises(ortmulti.InvalidArgument):
                pool.run(bad)  # of this thread
        assert pool.stats().apart == 2
        pool.submit(good).result(60)
        assert pool.stats().apart == 2
        for wrong in (True, 1.0, b"a"):
            with pytest.raises(TypeError, match="caller is a str or an int that stands for who asks, not "):
                pool.run(good, caller=wrong)


def test_requests_that_give_an_initializer_run_alone() -> None:
    weight = numpy_helper.from_array(np.array([3], np.float32), "w")
    model = onnx_models.parsed("(float[n] x, float[1] w) => (float[n] y) { y = Mul(x, w) }", weight).SerializeToString()
    one = np.ones(1, np.float32)
    with ortmulti.load(model, "cpu", batching=Batching(2, max_delay_ms=60_000)) as pool:
        futures = [pool.submit({"x": one, "w": factor * one}) for factor in (1, 2)]
        assert [future.result(60)[0].tolist() for future in futures] == [[1], [2]]
        assert pool.stats().why_unbatched == "input 'w' is an initializer, without rows"
        futures = [pool.submit({"x": factor * one}) for factor in (1, 2)]
        assert [future.result(60)[0].tolist() for future in futures] == [[3], [6]]
        assert pool.stats().devices[0].runs == 3
