"""Values in a row, and runs with them, against onnxruntime's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as state

import ortmulti
from ortmulti import OrtDevice, OrtValue, OrtValueVector, RunOptions
from tests.support import onnx_models
from tests.support import values as _values
from tests.support.bindings import A, B, make
from tests.support.lifetimes import alive
from tests.support.signatures import of_class

CPU = OrtDevice.make("cpu", 0)
THEIR_CPU = state.OrtDevice(0, 0, 0)


def vector(*values: Any) -> OrtValueVector:
    made = OrtValueVector()
    for value in values:
        made.push_back(value)
    return made


def their_vector(*arrays: np.ndarray) -> Any:
    made = state.OrtValueVector()
    for array in arrays:
        made.push_back(onnxruntime.OrtValue.ortvalue_from_numpy(array)._ortvalue)
    return made


# --- The vector -------------------------------------------------------------------------------------------------------


def test_the_methods_are_onnxruntimes() -> None:
    assert list(of_class(state.OrtValueVector, OrtValueVector)) == []


def test_a_vector_is_onnxruntimes() -> None:
    bools = np.array([True, False])
    ours, wanted = vector(make(A), make(bools), make(B)), their_vector(A, bools, B)
    assert len(ours) == len(wanted) == 3
    assert ours.bool_tensor_indices() == [1]
    if hasattr(wanted, "bool_tensor_indices"):
        assert wanted.bool_tensor_indices() == [1]
    assert [ours.element_type_at(i) for i in range(3)] == [wanted.element_type_at(i) for i in range(3)]
    for value, expected, array in zip(ours, wanted, (A, bools, B), strict=True):
        assert value.data_ptr() == expected.data_ptr() == array.ctypes.data
    ours.reserve(100)
    ours.shrink_to_fit()
    assert ours[2].data_ptr() == B.ctypes.data


def test_a_vectors_tensors_go_out_by_dlpack() -> None:
    ours = vector(make(A), make(B))
    pointers = [A.ctypes.data, B.ctypes.data]
    take = OrtValue.from_dlpack
    assert [value.data_ptr() for value in ours.to_dlpacks(take)] == pointers
    assert [take(capsule).data_ptr() for capsule in ours.to_dlpacks(None)] == pointers
    assert take(ours.dlpack_at(1)).data_ptr() == pointers[1]
    native = state.OrtValue.from_dlpack(ours.dlpack_at(0))
    assert native.data_ptr() == pointers[0]


def test_capsules_and_onnxruntimes_values_are_taken() -> None:
    flags = np.array([1, 0], np.uint8)
    native = onnxruntime.OrtValue.ortvalue_from_numpy(A)
    ours = OrtValueVector()
    ours.push_back(native)
    ours.push_back(native._ortvalue)
    ours.push_back(flags.__dlpack__(), True)
    ours.push_back(flags.__dlpack__())
    assert [value.data_type() for value in ours] == ["tensor(float)"] * 2 + ["tensor(bool)", "tensor(uint8)"]
    assert [value.data_ptr() for value in ours] == [A.ctypes.data] * 2 + [flags.ctypes.data] * 2


def test_a_batch_is_over_the_memory_that_it_keeps() -> None:
    arrays: list[Any] = [np.arange(4, dtype=np.float32), np.arange(6).reshape(2, 3)]
    watched = [weakref.ref(array) for array in arrays]
    ours = OrtValueVector()
    ours.push_back_batch(
        arrays,
        [array.ctypes.data for array in arrays],
        [np.float32, TensorProto.INT64],
        [array.shape for array in arrays],
        [CPU, CPU],
    )
    del arrays
    assert alive(*watched) == [True, True]
    assert ours[0].numpy().tolist() == [0, 1, 2, 3]
    second = ours[1].numpy()
    del ours
    assert alive(*watched) == [False, True]
    assert second.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_batch_is_appended_whole_or_not_at_all() -> None:
    ours = OrtValueVector()
    pointer = A.ctypes.data
    for batch, error in (
        (([A], [pointer], [np.float32], [A.shape], []), ortmulti.InvalidArgument),
        (([A, A], [pointer, 0], [np.float32] * 2, [A.shape] * 2, [CPU] * 2), ortmulti.InvalidArgument),
        (([A, A], [pointer] * 2, [np.float32, "x"], [A.shape] * 2, [CPU] * 2), ortmulti.InvalidType),
        (([A, A], [pointer] * 2, [np.float32] * 2, [A.shape] * 2, [CPU, "cpu"]), ortmulti.InvalidType),
        (([A], [pointer], [np.float32], [A.shape], [OrtDevice.make("npu", 0)]), ortmulti.NotImplemented),
        (([A], [pointer], [np.float32], [A.shape], [OrtDevice.make("cuda", 99)]), ortmulti.DeviceError),
    ):
        with pytest.raises(error):
            ours.push_back_batch(*batch)
        assert len(ours) == 0


def test_what_is_not_in_a_vector_is_said() -> None:
    ours = vector(make(A))
    for index in (1, -1, 99):
        with pytest.raises(IndexError):
            ours[index]
        with pytest.raises(IndexError):
            ours.dlpack_at(index)
    bad: list[Any] = ["0", None, 1.0]
    for wrong in bad:
        with pytest.raises(ortmulti.InvalidType):
            ours[wrong]
    with pytest.raises(ortmulti.InvalidType, match="__dlpack__"):
        ours.push_back(A)
    with pytest.raises(ortmulti.InvalidType):
        ours.reserve(-1)
    assert len(ours) == 1


def test_items_are_made_values_again() -> None:
    """As programs do with those of onnxruntime's C namespace."""
    array = A.copy()
    watched = weakref.ref(array)
    ours = vector(make(array))
    value = OrtValue(ours[0]._ortvalue, array)
    again = OrtValue(value._get_c_value())
    del ours, array, value
    assert alive(watched) == [True]
    np.testing.assert_array_equal(again.numpy(), A)


# --- Runs with vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["sum"], ["product", "first", "sum"], ["sum", "sum"]])
def test_runs_fill_a_vector_as_onnxruntimes(session: ortmulti.InferenceSession, theirs: Any, names: list[str]) -> None:
    got, wanted = OrtValueVector(), state.OrtValueVector()
    session.run_with_ortvaluevector(RunOptions(), ["b", "a"], vector(make(B), make(A)), names, got, [CPU] * len(names))
    theirs.run_with_ortvaluevector(
        onnxruntime.RunOptions(), ["b", "a"], their_vector(B, A), names, wanted, [THEIR_CPU] * len(names)
    )
    assert len(got) == len(wanted) == len(names)
    for ours, expected in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(ours.numpy(), expected.numpy())


def test_values_in_the_vector_are_written_to(session: ortmulti.InferenceSession) -> None:
    target = np.zeros((2, 3), np.float32)
    fetches = vector(make(target), OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32))
    before = [value.data_ptr() for value in fetches]
    for addend in (B, A):
        feeds = [make(A), onnxruntime.OrtValue.ortvalue_from_numpy(addend)]  # any sequence, any package's
        session.run_with_ortvaluevector(None, ["a", "b"], feeds, ["sum", "product"], fetches, [CPU, THEIR_CPU])
        np.testing.assert_array_equal(target, A + addend)
        np.testing.assert_array_equal(fetches[1].numpy(), A * addend)
    assert [value.data_ptr() for value in fetches] == before


def test_outputs_of_a_vector_go_on_without_the_session() -> None:
    session = ortmulti.InferenceSession(onnx_models.add_mul(3))
    fetches = OrtValueVector()
    session.run_with_ortvaluevector(None, ["a", "b"], vector(make(A), make(B)), ["sum"], fetches, [CPU])
    first = fetches[0].numpy()
    session.run_with_ortvaluevector(None, ["a", "b"], vector(make(A), make(A)), ["sum"], OrtValueVector(), [CPU])
    session.close()
    del session, fetches
    gc.collect()
    np.testing.assert_array_equal(first, A + B)


def test_sequences_go_through_a_vector() -> None:
    number = _values.tensor(TensorProto.FLOAT)
    session = onnx_models.cpu_session(_values.same(_values.sequence(number)))
    made = onnx_models.cpu_session(_values.one("SequenceConstruct", number, _values.sequence(number)))
    sequence, fetches = OrtValueVector(), OrtValueVector()
    made.run_with_ortvaluevector(None, ["x"], [make(A)], ["y"], sequence, [CPU])
    session.run_with_ortvaluevector(None, ["x"], sequence, ["y"], fetches, [CPU])
    assert (fetches[0].data_type(), fetches[0].is_tensor_sequence()) == ("seq(tensor(float))", True)
    [[array]] = session.run(None, {"x": fetches[0]})
    np.testing.assert_array_equal(array, A)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3, ["a", "b"], [A, B], ["sum"], None, [CPU]), ortmulti.InvalidType, "RunOptions, not int"),
        ((None, ["a", "z"], [A, B], ["sum"], None, [CPU]), ortmulti.InvalidArgument, "unknown input 'z'"),
        ((None, ["a"], [A], ["sum"], None, [CPU]), ortmulti.InvalidArgument, r"Required inputs .*'b'"),
        ((None, ["a", "b"], [A], ["sum"], None, [CPU]), ortmulti.InvalidArgument, "2 names, 1 values"),
        ((None, ["a", "a"], [A, B], ["sum"], None, [CPU]), ortmulti.InvalidArgument, "name each input once"),
        ((None, ["a", "b"], [A, B.astype(int)], ["sum"], None, [CPU]), ortmulti.InvalidType, "int64"),
        ((None, ["a", "b"], [A, B[0]], ["sum"], None, [CPU]), ortmulti.InvalidArgument, "shape"),
        ((None, ["a", "b"], [A, B], [], None, []), ortmulti.InvalidArgument, "0 names, 1 values"),
        ((None, ["a", "b"], [A, B], [], OrtValueVector(), []), ortmulti.InvalidArgument, "no output"),
        ((None, ["a", "b"], [A, B], ["sum"], None, []), ortmulti.InvalidArgument, "1 names, 1 values, 0 devices"),
        ((None, ["a", "b"], [A, B], ["sum", "first"], None, [CPU] * 2), ortmulti.InvalidArgument, "2 names, 1 values"),
        ((None, ["a", "b"], [A, B], ["x"], None, [CPU]), ortmulti.InvalidArgument, "unknown output 'x'"),
        ((None, ["a", "b"], [A, B], ["sum"], None, ["cpu"]), ortmulti.InvalidType, "OrtDevice, not str"),
        ((None, "ab", [A, B], ["sum"], None, [CPU]), ortmulti.InvalidType, "feed_names"),
        ((None, ["a", 3], [A, B], ["sum"], None, [CPU]), ortmulti.InvalidType, "feed_names"),
        ((None, ["a", "b"], 3, ["sum"], None, [CPU]), ortmulti.InvalidType, "feeds"),
        ((None, ["a", "b"], [A, B], ["sum"], [], [CPU]), ortmulti.InvalidType, "OrtValueVector, not list"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(
    session: ortmulti.InferenceSession, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    options, names, feeds, outputs, fetches, devices = arguments
    target = np.full((2, 3), -1, np.float32)
    kept = vector(make(target))
    values = [make(array) for array in feeds] if isinstance(feeds, list) else feeds
    with pytest.raises(error, match=message):
        session.run_with_ortvaluevector(options, names, values, outputs, kept if fetches is None else fetches, devices)
    assert len(kept) == 1
    assert kept[0].data_ptr() == target.ctypes.data
    assert (target == -1).all()


def test_an_output_written_to_two_values_is_refused(session: ortmulti.InferenceSession) -> None:
    fetches = vector(make(A.copy()), make(A.copy()))
    with pytest.raises(ortmulti.InvalidArgument, match="twice"):
        session.run_with_ortvaluevector(None, ["a", "b"], [make(A), make(B)], ["sum", "sum"], fetches, [CPU, CPU])
