"""Values in and out of a run, beside onnxruntime in the same process."""

from __future__ import annotations

import gc
from types import MappingProxyType
from typing import Any

import hypothesis
import numpy as np
import onnxruntime
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper

import ortmulti
from tests.support import onnx_models, values
from tests.support.arrays import read_only
from tests.support.pools import in_threads
from tests.support.processes import lines
from tests.support.values import assert_same


def pair(element_type: int) -> tuple[onnxruntime.InferenceSession, ortmulti.InferenceSession]:
    """The same model, "y" = "x" of any shape, in onnxruntime and here."""
    return values.pair(onnx_models.identity(element_type))


@pytest.mark.parametrize("element_type", sorted(onnx_models.NUMERIC), ids=lambda t: TensorProto.DataType.Name(t))
def test_every_numeric_type_keeps_its_extreme_values(element_type: int) -> None:
    dtype = onnx_models.NUMERIC[element_type]
    if dtype.kind == "f":
        info: Any = np.finfo(dtype)
        extremes = [info.min, info.max, info.tiny, info.smallest_subnormal, -0.0, np.inf, -np.inf, np.nan]
    elif dtype.kind == "b":
        extremes = [False, True]
    else:
        info = np.iinfo(dtype)
        extremes = [info.min, info.max, 0, 1]
    array = np.array(extremes, dtype)
    [result] = pair(element_type)[1].run(None, {"x": array})
    assert_same(result, array)


@pytest.mark.parametrize(("code", "element_type"), [("q", TensorProto.INT64), ("Q", TensorProto.UINT64)])
def test_both_of_numpys_64_bit_integers_are_taken(code: str, element_type: int) -> None:
    [result] = pair(element_type)[1].run(None, {"x": np.arange(3).astype(code)})
    assert result.tolist() == [0, 1, 2]


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


@pytest.mark.parametrize("dtype", [object, str, bytes])
@hypothesis.given(texts=st.lists(TEXTS, max_size=6))
def test_strings_are_kept(dtype: type, texts: list[str]) -> None:
    array = np.array([text.encode() for text in texts] if dtype is bytes else texts, dtype)
    kept = [item.decode() if dtype is bytes else item for item in array.tolist()]  # NumPy's types end before a NUL
    [result] = pair(TensorProto.STRING)[1].run(None, {"x": array})
    assert (result.dtype, result.tolist()) == (np.dtype(object), kept)


def test_string_arrays_and_other_objects_become_text_as_in_onnxruntime() -> None:
    grid = np.array([["a", "bb", ""], ["é漢", "日本語", "x" * 1000]])
    objects = np.array(["a\0b", 3, None, 2.5], object)
    for array in (
        grid, grid.T, grid[::-1, ::2], np.array("alone"), np.zeros((0, 3), str), grid.astype(object).T, objects,
    ):  # fmt: skip
        values.check(onnx_models.identity(TensorProto.STRING), array)


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


def test_contiguous_inputs_are_not_copied_and_others_are() -> None:
    """Seen in the peak memory of a process that feeds 256 MB to models with an output of 8 bytes."""
    proto = onnx_models.model(
        [helper.make_node("Size", ["x"], ["y"])], [("x", TensorProto.FLOAT, None)], [("y", TensorProto.INT64, [])]
    )
    many = values.one("SequenceLength", values.sequence(values.tensor(1)), values.tensor(TensorProto.INT64))
    [contiguous, in_a_list, transposed] = lines(
        """
        def peak():
            [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
            return int(line.split()[1]) * 1024

        one, many = session(), om.InferenceSession(bytes.fromhex(sys.argv[2]))
        array = np.ones((8192, 8192), np.float32)
        one.run(None, {"x": array[:1]})
        many.run(None, {"x": [array[:1]]})
        for each, x in ((one, array), (many, [array[:4096], array[4096:]]), (one, array.T)):
            before = peak()
            each.run(None, {"x": x})
            print(peak() - before)
        """,
        proto.SerializeToString(),
        many.hex(),
    )
    assert int(contiguous) < 16 << 20
    assert int(in_a_list) < 16 << 20
    assert int(transposed) > 200 << 20


def test_outputs_are_onnxruntimes_own_memory() -> None:
    session = onnx_models.cpu_session(onnx_models.one_node("Neg"))
    [result] = session.run(None, {"x": np.ones(1000, np.float32)})
    assert not result.flags.owndata
    assert type(result.base).__name__ == "PyCapsule"
    assert result.flags.writeable
    assert result.flags.c_contiguous


def test_constant_outputs_equal_onnxruntimes_and_outlive_the_session() -> None:
    x = np.arange(1000, dtype=np.float32)
    theirs = onnxruntime.InferenceSession(onnx_models.constant_outputs(), providers=["CPUExecutionProvider"])
    expected = theirs.run(None, {"x": x})
    with onnx_models.cpu_session(onnx_models.constant_outputs()) as session:
        for array in session.run(None, {"x": x}):
            array[...] = 77  # an array is the caller's own
        x = np.arange(1000, dtype=np.float32)
        results = session.run(None, {"x": x})
    del session
    gc.collect()
    # What a session freed would be given out again here.
    others = [onnx_models.cpu_session(onnx_models.constant_outputs()) for _ in range(4)]
    scratch = [other.run(None, {"x": np.full(1000, 9, np.float32)}) for other in others]
    assert_same(results, expected)
    assert len(scratch) == 4


def test_an_input_that_is_also_an_output_is_copied() -> None:
    """Over the input's own memory the output would end with it."""
    session = onnx_models.cpu_session(onnx_models.constant_outputs())
    for x in (np.arange(5, dtype=np.float32), read_only(np.arange(5, dtype=np.float32))):
        [result] = session.run(["x"], {"x": x})
        assert_same(result, x)
        assert not np.shares_memory(result, x)
        assert result.flags.writeable


def test_outputs_are_those_asked_for_in_the_order_asked_for() -> None:
    """Inputs may come in any order and mapping."""
    session = onnx_models.cpu_session(onnx_models.add_mul(2))
    feed = {"b": np.array([[3, 4]], np.float32), "a": np.array([[1, 2]], np.float32)}
    expected = {"sum": [[4, 6]], "product": [[3, 8]], "first": [[1, 2]]}
    for names in (None, [], ["sum"], ["product", "sum"], ("first", "product", "sum"), ["sum", "sum"]):
        for given in (feed, MappingProxyType(feed)):
            assert [r.tolist() for r in session.run(names, given)] == [expected[name] for name in names or expected]


def test_runs_from_many_threads_equal_serial_ones() -> None:
    session = onnx_models.cpu_session(onnx_models.matmul(128, 4))
    random = np.random.default_rng(1)
    batches = [random.standard_normal((rows, 128), dtype=np.float32) for rows in range(1, 33)]
    expected = [session.run(None, {"x": batch})[0] for batch in batches]

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).permutation(len(batches)):
            assert_same(session.run(None, {"x": batches[i]})[0], expected[i])

    in_threads(8, work)


def test_a_run_lets_other_threads_run_and_can_be_ended_by_one() -> None:
    """The run logs that it began; the handler, which needs the GIL, then ends it. With the GIL held: a hang."""
    code = """
        import logging

        run_options = om.RunOptions()
        run_options.logid = "a long run"

        class End(logging.Handler):
            def emit(self, record):
                if "a long run" in record.getMessage():
                    run_options.terminate = True

        logger = logging.getLogger("ortmulti.onnxruntime")
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(End())
        made = session(log_severity_level=1)
        feed = {"count": np.array(2**62), "x": np.ones(4, np.float32)}
        error = error_of(made.run, None, feed, run_options)
        print(error.startswith("Fail: "), "terminate" in error)
        feed["count"] = np.array(3)
        print(made.run(None, feed)[0].tolist())
    """
    assert lines(code, onnx_models.endless()) == ["True True", "[4.0, 4.0, 4.0, 4.0]"]
