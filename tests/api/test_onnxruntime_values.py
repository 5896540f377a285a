"""onnxruntime's own values where ours are taken, and values of either among what a run is fed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

import ortmulti
from ortmulti import OrtValue
from tests.support import onnx_models
from tests.support import values as _values
from tests.support.bindings import BOOL_IS_UINT8, A, B, from_dlpack, make
from tests.support.lifetimes import alive
from tests.support.pools import in_threads
from tests.support.processes import lines

theirs = onnxruntime.OrtValue.ortvalue_from_numpy


def native(array: np.ndarray) -> Any:
    """Of onnxruntime's C namespace; such values do not keep their array."""
    return theirs(array)._ortvalue


BOTH = pytest.mark.parametrize("value", [theirs, native])


@BOTH
def test_runs_with_values_take_them(session: ortmulti.InferenceSession, value: Any) -> None:
    [total] = session.run_with_ort_values(["sum"], {"a": value(A), "b": make(B)})
    np.testing.assert_array_equal(total.numpy(), A + B)


@BOTH
def test_nothing_is_copied_on_the_way(value: Any) -> None:
    """Seen in an output that is the input itself."""
    session = onnx_models.cpu_session(onnx_models.constant_outputs())
    x = np.arange(5, dtype=np.float32)
    [output] = session.run_with_ort_values(["x"], {"x": value(x)})
    assert output.data_ptr() == x.ctypes.data
    [result] = session.run(["x"], {"x": value(x)})
    assert not np.shares_memory(result, x)  # an array is the caller's own
    np.testing.assert_array_equal(result, x)


@BOTH
def test_bindings_take_them(session: ortmulti.InferenceSession, value: Any) -> None:
    target = np.zeros_like(A)
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", value(A))
    binding.bind_ortvalue_input("b", value(B))
    binding.bind_ortvalue_output("sum", value(target))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target, A + B)


@BOTH
def test_values_are_updated_from_them(value: Any) -> None:
    array = np.zeros_like(A)
    make(array).update_inplace(value(A))
    np.testing.assert_array_equal(array, A)
    with pytest.raises(ortmulti.InvalidArgument, match="bytes"):
        make(array).update_inplace(value(A[0].copy()))


def test_onnxruntime_is_not_imported_for_it() -> None:
    code = """
        class OrtValue:
            pass

        value = om.OrtValue.ortvalue_from_numpy(np.zeros(3))
        for wrong in (OrtValue(), object(), np.float32):
            print(error_of(value.update_inplace, wrong).partition(":")[0])
        print([name for name in sys.modules if name.partition(".")[0] == "onnxruntime"])
    """
    assert lines(code, b"") == ["InvalidType"] * 3 + ["[]"]


# --- Among what a run is fed ------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda array: array,
    "our value": make,
    "onnxruntime's value": theirs,
    "onnxruntime's in C": native,
    "session's value": lambda array: in_a_sessions_memory(array),
}


def in_a_sessions_memory(array: np.ndarray) -> OrtValue:
    with onnx_models.cpu_session(onnx_models.add_mul(3)) as session:
        value = session.create_ortvalue_from_shape_and_type(array.shape, array.dtype, "cpu")
        value.update_inplace(array)
        return value


@pytest.mark.parametrize("b", FORMS)
@pytest.mark.parametrize("a", FORMS)
def test_runs_take_values_and_arrays_together(session: ortmulti.InferenceSession, a: str, b: str) -> None:
    results = session.run(None, {"a": FORMS[a](A), "b": FORMS[b](B)})
    for result, expected in zip(results, (A + B, A * B, A), strict=True):
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("element", sorted(onnx_models.NUMERIC), ids=lambda t: TensorProto.DataType.Name(t))
@given(data=st.data())
def test_values_of_every_type_give_what_arrays_give(element: int, data: st.DataObject) -> None:
    form = data.draw(st.sampled_from([make, theirs, native]))
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(onnx_models.NUMERIC[element])
    native_session, session = _values.pair(onnx_models.identity(element))
    [expected] = native_session.run(None, {"x": theirs(array)})
    [actual] = session.run(None, {"x": form(array)})
    _values.assert_same(actual, expected)


@pytest.mark.parametrize(
    ("feed", "error", "message"),
    [
        ({"a": make(A.astype(float)), "b": B}, ortmulti.InvalidType, r"'a' is tensor\(float\).*tensor\(double\)"),
        ({"a": theirs(A.astype(float)), "b": B}, ortmulti.InvalidType, r"tensor\(double\)"),
        ({"a": make(A.T.copy()), "b": B}, ortmulti.InvalidArgument, r"\[3, 2\]"),
        ({"a": make(A)}, ortmulti.InvalidArgument, r"Required inputs .*'b'"),
        ({"a": make(A), "z": make(B)}, ortmulti.InvalidArgument, "unknown input 'z'"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    session: ortmulti.InferenceSession, feed: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        session.run(None, feed)
    assert len(session.run(None, {"a": make(A), "b": B})) == 3


# --- What cannot be handed over ---------------------------------------------------------------------------------------


def made(op: str, type_: Any, **attributes: Any) -> Any:
    """onnxruntime's value of this type, which it makes of A."""
    session, _ = _values.pair(_values.one(op, _values.tensor(TensorProto.FLOAT), type_, **attributes))
    [value] = session.run_with_ort_values(None, {"x": theirs(A)})
    return value


def their_empty() -> Any:
    session = onnxruntime.InferenceSession(onnx_models.add_mul(3), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_output("sum")
    return binding.get_outputs()[0]


def their_sequence() -> Any:
    return made("SequenceConstruct", _values.sequence(_values.tensor(TensorProto.FLOAT)))


def their_strings() -> Any:
    return made("Cast", _values.tensor(TensorProto.STRING), to=TensorProto.STRING)


def of_type(number: int) -> Callable[[], Any]:
    return lambda: onnxruntime.OrtValue.ortvalue_from_shape_and_type([2], number)


SMALL_TYPES = {
    "float8": (of_type(TensorProto.FLOAT8E4M3FN), r"tensor\(float8e4m3fn\)"),
    "int4": (of_type(TensorProto.INT4), r"tensor\(int4\)"),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sequence": (their_sequence, r"seq\(tensor\(float\)\)"),
    "strings": (their_strings, r"tensor\(string\)"),
    "empty": (their_empty, "empty"),
    **(SMALL_TYPES if BOOL_IS_UINT8 else {}),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_handed_over_is_refused_by_name(session: ortmulti.InferenceSession, kind: str) -> None:
    make_value, message = REFUSED[kind]
    value = make_value()
    binding = session.io_binding()
    for call in (
        lambda: session.run(None, {"a": value, "b": B}),
        lambda: session.run_with_ort_values(None, {"a": value, "b": make(B)}),
        lambda: binding.bind_ortvalue_input("a", value),
        lambda: binding.bind_ortvalue_output("sum", value),
        lambda: make(A.copy()).update_inplace(value),
        lambda: ortmulti.copy_tensors([value], [make(A.copy())]),
        lambda: ortmulti.OrtValueVector().push_back(value),
    ):
        with pytest.raises(ortmulti.NotImplemented, match=f"onnxruntime.OrtValue.*{message}|{message}.*onnxruntime"):
            call()


# --- Lifetimes --------------------------------------------------------------------------------------------------------


def test_what_is_fed_lives_as_long_as_the_run_and_no_longer(session: ortmulti.InferenceSession) -> None:
    watched = []

    def fresh(form: Callable[[np.ndarray], Any]) -> Any:
        array = A.copy()
        watched.append(weakref.ref(array))
        return form(array)

    for form in FORMS.values():
        if form is native:
            continue
        results = session.run(None, {"a": fresh(form), "b": fresh(form)})
        assert not any(alive(*watched))
        np.testing.assert_array_equal(results[1], A * A)


def test_bound_values_of_onnxruntime_are_kept(session: ortmulti.InferenceSession) -> None:
    array, target = A.copy(), np.zeros_like(A)
    watched, written = weakref.ref(array), weakref.ref(target)
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", theirs(array))
    binding.bind_ortvalue_output("sum", theirs(target))
    del array, target
    binding.bind_cpu_input("b", B)
    gc.collect()
    session.run_with_iobinding(binding)
    total = binding.get_outputs()[0].numpy()
    assert alive(watched, written) == [True, True]
    del binding
    assert alive(watched, written) == [False, True]
    np.testing.assert_array_equal(total, A + B)
    del total
    assert alive(written) == [False]


def test_onnxruntimes_outputs_go_on_without_their_session(session: ortmulti.InferenceSession) -> None:
    other = onnxruntime.InferenceSession(onnx_models.add_mul(3), providers=["CPUExecutionProvider"])
    [total] = other.run_with_ort_values(["sum"], {"a": theirs(A), "b": theirs(B)})
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", total)
    binding.bind_ortvalue_input("b", total)
    binding.bind_output("sum")
    del other, total
    gc.collect()
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * (A + B))


# --- Concurrent use ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_many_threads_import_run_and_export_at_once(count: int) -> None:
    """Over one session and over several; each thread's own numbers, so that nobody gets another's."""
    sessions = [onnx_models.cpu_session(onnx_models.add_mul(64)) for _ in range(count)]
    shared = np.full((5, 64), 3, np.float32)

    def work(thread: int) -> None:
        session = sessions[thread % count]
        binding = session.io_binding()
        for i in range(60):
            mine = np.full((5, 64), 100 * thread + i, np.float32)
            expected = mine + shared
            values = [make(shared), OrtValue.from_dlpack(shared), theirs(shared), shared]
            [total] = session.run(["sum"], {"a": make(mine), "b": values[i % 4]})
            [other] = session.run_with_ort_values(["sum"], {"a": theirs(mine), "b": make(shared)})
            binding.bind_ortvalue_input("a", OrtValue.from_dlpack(mine))
            binding.bind_ortvalue_input("b", values[i % 3])
            binding.bind_output("sum")
            session.run_with_iobinding(binding)
            taken = np.from_dlpack(binding.get_outputs()[0])
            binding.clear_binding_outputs()
            back = from_dlpack(other)
            del values, other, mine
            for result in (total, taken, back.numpy()):
                np.testing.assert_array_equal(result, expected)

    in_threads(6, work)
