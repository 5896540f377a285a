"""Values in and out of a run, beside onnxruntime in the same process."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import hypothesis
import numpy as np
import onnxruntime
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper

import ortmulti
from tests.support import onnx_models
from tests.support.processes import check_child

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def pair(element_type: int) -> tuple[onnxruntime.InferenceSession, ortmulti.InferenceSession]:
    """The same model, "y" = "x" of any shape, in onnxruntime and here."""
    model = onnx_models.identity(element_type)
    return (
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]),
        ortmulti.InferenceSession(model, providers=["CPUExecutionProvider"]),
    )


def assert_same(actual: Array, expected: Array) -> None:
    """Same dtype, shape and bits."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("element_type", sorted(onnx_models.NUMERIC), ids=lambda t: TensorProto.DataType.Name(t))
def test_every_numeric_type_keeps_its_extreme_values(element_type: int) -> None:
    dtype = onnx_models.NUMERIC[element_type]
    if dtype.kind == "f":
        info: Any = np.finfo(dtype)
        values = [info.min, info.max, info.tiny, info.smallest_subnormal, -0.0, np.inf, -np.inf, np.nan]
    elif dtype.kind == "b":
        values = [False, True]
    else:
        info = np.iinfo(dtype)
        values = [info.min, info.max, 0, 1]
    array = np.array(values, dtype)
    [result] = pair(element_type)[1].run(None, {"x": array})
    assert_same(result, array)


@pytest.mark.parametrize("code", ["q", "Q"])
def test_both_of_numpys_64_bit_integers_are_taken(code: str) -> None:
    array = np.arange(3).astype(code)
    element_type = TensorProto.INT64 if code == "q" else TensorProto.UINT64
    [result] = pair(element_type)[1].run(None, {"x": array})
    assert result.tolist() == [0, 1, 2]


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


@hypothesis.given(st.lists(TEXTS, max_size=6))
def test_strings_of_an_object_array_are_kept_as_in_onnxruntime(texts: list[str]) -> None:
    array = np.array(texts, object)
    theirs, ours = pair(TensorProto.STRING)
    [result] = ours.run(None, {"x": array})
    assert result.dtype == object
    assert result.tolist() == theirs.run(None, {"x": array})[0].tolist() == texts


@hypothesis.given(st.lists(TEXTS, max_size=6))
def test_strings_of_a_unicode_array_are_kept(texts: list[str]) -> None:
    array = np.array(texts, str)
    [result] = pair(TensorProto.STRING)[1].run(None, {"x": array})
    assert result.tolist() == array.tolist()


@hypothesis.given(st.lists(TEXTS, max_size=6))
def test_a_bytes_array_is_utf8_text(texts: list[str]) -> None:
    array = np.array([text.encode() for text in texts], bytes)
    [result] = pair(TensorProto.STRING)[1].run(None, {"x": array})
    assert result.tolist() == [item.decode() for item in array.tolist()]


def test_string_arrays_of_every_shape() -> None:
    theirs, ours = pair(TensorProto.STRING)
    grid = np.array([["a", "bb", ""], ["é漢", "日本語", "x" * 1000]])
    for array in (grid, grid.T, grid[::-1, ::2], np.array("alone"), np.zeros((0, 3), str), grid.astype(object).T):
        [expected] = theirs.run(None, {"x": array})
        [result] = ours.run(None, {"x": array})
        assert (result.shape, result.dtype, result.tolist()) == (expected.shape, expected.dtype, expected.tolist())


def test_other_objects_become_text_as_in_onnxruntime() -> None:
    array = np.array(["a", 3, None, 2.5], object)
    theirs, ours = pair(TensorProto.STRING)
    assert ours.run(None, {"x": array})[0].tolist() == theirs.run(None, {"x": array})[0].tolist()


def test_strings_that_are_no_text_are_errors_and_not_altered() -> None:
    ours = pair(TensorProto.STRING)[1]
    with pytest.raises(UnicodeEncodeError):
        ours.run(None, {"x": np.array(["\ud800"], object)})
    with pytest.raises(UnicodeDecodeError):
        ours.run(None, {"x": np.array([b"\xff"])})


def test_lists_and_numbers_are_converted_to_the_declared_type() -> None:
    ours = pair(TensorProto.FLOAT)[1]
    assert_same(ours.run(None, {"x": [[1, 2], [3, 4]]})[0], np.array([[1, 2], [3, 4]], np.float32))
    assert_same(ours.run(None, {"x": 2.5})[0], np.array(2.5, np.float32))
    assert pair(TensorProto.STRING)[1].run(None, {"x": ["a", "b"]})[0].tolist() == ["a", "b"]


def test_contiguous_inputs_are_not_copied_and_others_are(tmp_path: Path) -> None:
    """Seen in the peak memory of a process that feeds 256 MB to a model with an output of 8 bytes."""
    proto = onnx_models.model(
        [helper.make_node("Size", ["x"], ["y"])], [("x", TensorProto.FLOAT, None)], [("y", TensorProto.INT64, [])]
    )
    path = tmp_path / "size.onnx"
    path.write_bytes(proto.SerializeToString())
    [contiguous, transposed] = check_child(
        """
        import sys
        import numpy as np
        import ortmulti

        def peak():
            [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
            return int(line.split()[1]) * 1024

        session = ortmulti.InferenceSession(sys.argv[1])
        array = np.ones((8192, 8192), np.float32)
        session.run(None, {"x": array[:1]})
        for x in (array, array.T):
            before = peak()
            session.run(None, {"x": x})
            print(peak() - before)
        """,
        path,
    ).split()
    assert int(contiguous) < 16 << 20
    assert int(transposed) > 200 << 20


def test_outputs_are_onnxruntimes_own_memory() -> None:
    session = onnx_models.cpu_session(onnx_models.one_node("Neg"))
    [result] = session.run(None, {"x": np.ones(1000, np.float32)})
    assert not result.flags.owndata
    assert type(result.base).__name__ == "PyCapsule"
    assert result.flags.writeable
    assert result.flags.c_contiguous


def test_outputs_outlive_the_session() -> None:
    x = np.arange(1000, dtype=np.float32)
    session = onnx_models.cpu_session(onnx_models.constant_outputs())
    results = session.run(None, {"x": x})
    expected = [array.copy() for array in results]
    session.close()
    del session
    gc.collect()
    # What a session freed would be given out again here.
    others = [onnx_models.cpu_session(onnx_models.constant_outputs()) for _ in range(4)]
    scratch = [other.run(None, {"x": np.full(1000, 9, np.float32)}) for other in others]
    for actual, wanted in zip(results, expected, strict=True):
        assert_same(actual, wanted)
    assert len(scratch) == 4


def test_constant_outputs_equal_onnxruntimes_and_are_the_callers_own() -> None:
    x = np.arange(5, dtype=np.float32)
    session = onnx_models.cpu_session(onnx_models.constant_outputs())
    theirs = onnxruntime.InferenceSession(onnx_models.constant_outputs(), providers=["CPUExecutionProvider"])
    expected = theirs.run(None, {"x": x})
    first = session.run(None, {"x": x})
    for actual, wanted in zip(first, expected, strict=True):
        assert_same(actual, wanted)
    for array in first:
        array[...] = 77
    for actual, wanted in zip(session.run(None, {"x": np.arange(5, dtype=np.float32)}), expected, strict=True):
        assert_same(actual, wanted)


def test_an_input_that_is_also_an_output_is_copied() -> None:
    """Over the input's own memory the output would end with it."""
    x = np.arange(5, dtype=np.float32)
    session = onnx_models.cpu_session(onnx_models.constant_outputs())
    [result] = session.run(["x"], {"x": x})
    assert_same(result, x)
    assert not np.shares_memory(result, x)
    fixed = np.array([7, 8], np.float32)
    fixed.flags.writeable = False
    [result] = session.run(["x"], {"x": fixed})
    result[...] = 0
    assert fixed.tolist() == [7, 8]


def test_outputs_are_those_asked_for_in_the_order_asked_for() -> None:
    session = onnx_models.cpu_session(onnx_models.add_mul(2))
    a, b = np.array([[1, 2]], np.float32), np.array([[3, 4]], np.float32)
    expected = {"sum": [[4, 6]], "product": [[3, 8]], "first": [[1, 2]]}
    for names in (
        None, [], ["sum"], ["product", "sum"], ("first", "product", "sum"), ["sum", "sum"],
    ):  # fmt: skip
        results = session.run(names, {"a": a, "b": b})
        assert [r.tolist() for r in results] == [expected[name] for name in names or expected]


def test_inputs_may_come_in_any_order_and_mapping() -> None:
    session = onnx_models.cpu_session(onnx_models.add_mul(2))
    feed = {"b": np.array([[3, 4]], np.float32), "a": np.array([[1, 2]], np.float32)}
    assert session.run(["first"], feed)[0].tolist() == [[1, 2]]
    assert session.run(["first"], MappingProxyType(feed))[0].tolist() == [[1, 2]]


def test_runs_from_many_threads_equal_serial_ones() -> None:
    session = onnx_models.cpu_session(onnx_models.matmul(128, 4))
    random = np.random.default_rng(1)
    batches = [random.standard_normal((rows, 128), dtype=np.float32) for rows in range(1, 33)]
    expected = [session.run(None, {"x": batch})[0] for batch in batches]
    start = threading.Barrier(8)

    def work(seed: int) -> list[tuple[int, Array]]:
        order = np.random.default_rng(seed).permutation(len(batches))
        start.wait()
        return [(i, session.run(None, {"x": batches[i]})[0]) for i in order]

    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(work, range(8)):
            assert len(results) == len(batches)
            for i, result in results:
                assert_same(result, expected[i])


def test_a_run_lets_other_threads_run_and_can_be_ended_by_one() -> None:
    """The run logs that it began; the handler, which needs the GIL, then ends it. With the GIL held: a hang."""
    printed = check_child(
        """
        import logging, sys
        import numpy as np
        import ortmulti

        run_options = ortmulti.RunOptions()
        run_options.logid = "a long run"

        class End(logging.Handler):
            def emit(self, record):
                if "a long run" in record.getMessage():
                    run_options.terminate = True

        logger = logging.getLogger("ortmulti.onnxruntime")
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(End())
        options = ortmulti.SessionOptions()
        options.log_severity_level = 1
        session = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]), options)
        feed = {"count": np.array(2**62), "x": np.ones(4, np.float32)}
        try:
            session.run(None, feed, run_options)
        except ortmulti.Error as error:
            print(type(error).__name__, "terminate" in str(error))
        feed["count"] = np.array(3)
        print(session.run(None, feed)[0].tolist())
        """,
        onnx_models.endless().hex(),
    )
    assert printed.splitlines() == ["Fail True", "[4.0, 4.0, 4.0, 4.0]"]
