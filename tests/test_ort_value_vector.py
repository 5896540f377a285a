"""Values in a row, runs with them, and values in a session's memory, against onnxruntime's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import ortmulti
from ortmulti import OrtDevice, OrtValue, OrtValueVector, RunOptions
from tests import _models, _values
from tests._bindings import A, B, make
from tests._processes import check_child
from tests._signatures import of_class

onnxruntime = pytest.importorskip("onnxruntime")
state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")

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


@pytest.fixture(scope="module")
def session() -> ortmulti.InferenceSession:
    """sum, product, first of a and b."""
    return ortmulti.InferenceSession(_models.add_mul(3), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def theirs() -> Any:
    return onnxruntime.InferenceSession(_models.add_mul(3), providers=["CPUExecutionProvider"])


# --- The vector -------------------------------------------------------------------------------------------------------


def test_the_methods_are_onnxruntimes() -> None:
    assert list(of_class(state.OrtValueVector, OrtValueVector)) == []


def test_a_vector_is_onnxruntimes() -> None:
    bools = np.array([True, False])
    ours, wanted = vector(make(A), make(bools), make(B)), their_vector(A, bools, B)
    assert len(ours) == len(wanted) == 3
    assert ours.bool_tensor_indices() == wanted.bool_tensor_indices() == [1]
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
    gc.collect()
    assert ours[0].numpy().tolist() == [0, 1, 2, 3]
    second = ours[1].numpy()
    del ours
    gc.collect()
    assert [kept() is not None for kept in watched] == [False, True]
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
    gc.collect()
    assert watched() is not None
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
    session = ortmulti.InferenceSession(_models.add_mul(3))
    fetches = OrtValueVector()
    session.run_with_ortvaluevector(None, ["a", "b"], vector(make(A), make(B)), ["sum"], fetches, [CPU])
    first = fetches[0].numpy()
    session.run_with_ortvaluevector(None, ["a", "b"], vector(make(A), make(A)), ["sum"], OrtValueVector(), [CPU])
    session.close()
    del session, fetches
    gc.collect()
    np.testing.assert_array_equal(first, A + B)


def test_sequences_go_through_a_vector() -> None:
    session = ortmulti.InferenceSession(_values.same(_values.sequence(_values.tensor(TensorProto.FLOAT))))
    made = ortmulti.InferenceSession(
        _values.one(
            "SequenceConstruct",
            _values.tensor(TensorProto.FLOAT),
            _values.sequence(_values.tensor(TensorProto.FLOAT)),
        )
    )
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
        ((None, ["a"], [A], ["sum"], None, [CPU]), ortmulti.InvalidArgument, "missing input 'b'"),
        ((None, ["a", "b"], [A], ["sum"], None, [CPU]), ortmulti.InvalidArgument, "2 names, 1 values"),
        ((None, ["a", "a"], [A, B], ["sum"], None, [CPU]), ortmulti.InvalidArgument, "each input once"),
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


# --- The binding of the C namespace -----------------------------------------------------------------------------------


def test_session_io_binding_is_onnxruntimes(session: ortmulti.InferenceSession, theirs: Any) -> None:
    results = []
    for binding, device, value, run in (
        (ortmulti.SessionIOBinding(session), CPU, make(B), session.run_with_iobinding),
        (
            state.SessionIOBinding(theirs._sess),
            THEIR_CPU,
            onnxruntime.OrtValue.ortvalue_from_numpy(B)._ortvalue,
            lambda bound: theirs._sess.run_with_iobinding(bound, None),
        ),
    ):
        target = np.zeros((2, 3), np.float32)
        binding.bind_input("a", A)
        binding.bind_ortvalue_input("b", value)
        binding.bind_output("sum", device)
        binding.bind_output("product", device, np.float32, [2, 3], target.ctypes.data)
        binding.synchronize_inputs()
        run(binding)
        binding.synchronize_outputs()
        total, product = binding.get_outputs()
        assert product.data_ptr() == target.ctypes.data
        results.append([total.numpy().copy(), target, *binding.copy_outputs_to_cpu()])
        binding.bind_input("a", device, TensorProto.FLOAT, [2, 3], B.ctypes.data)
        run(binding)
        results[-1].append(binding.copy_outputs_to_cpu()[0])
        binding.clear_binding_outputs()
        binding.clear_binding_inputs()
        assert len(binding.get_outputs()) == 0
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_an_io_binding_has_one(session: ortmulti.InferenceSession) -> None:
    binding = session.io_binding()
    binding._iobinding.bind_input("a", A)
    binding.bind_cpu_input("b", B)
    binding.bind_output("sum")
    session.run_with_iobinding(binding)
    outputs = binding.get_outputs_as_ortvaluevector()
    assert isinstance(outputs, OrtValueVector)
    del binding
    gc.collect()
    np.testing.assert_array_equal(outputs[0].numpy(), A + B)


def test_what_a_session_io_binding_does_not_take_is_said(session: ortmulti.InferenceSession) -> None:
    binding = ortmulti.SessionIOBinding(session)
    for call, error in (
        (lambda: ortmulti.SessionIOBinding(3), ortmulti.InvalidType),
        (lambda: binding.bind_input("a"), ortmulti.InvalidType),
        (lambda: binding.bind_input("a", CPU, np.float32), ortmulti.InvalidType),
        (lambda: binding.bind_input("a", "cpu", np.float32, [2, 3], A.ctypes.data), ortmulti.InvalidType),
        (lambda: binding.bind_output("sum", "cpu"), ortmulti.InvalidType),
        (lambda: binding.bind_output("sum", CPU, np.float32), ortmulti.InvalidType),
        (lambda: binding.bind_output("sum", OrtDevice.make("npu", 0)), ortmulti.NotImplemented),
        (lambda: binding.bind_output("sum", OrtDevice.make("cuda", 99)), ortmulti.DeviceError),
        (lambda: binding.bind_ortvalue_output("sum", A), ortmulti.InvalidType),
    ):
        with pytest.raises(error):
            call()


# --- Values in a session's memory, and copies -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, "float32", TensorProto.FLOAT])
def test_values_in_a_sessions_memory(session: ortmulti.InferenceSession, theirs: Any, kind: Any) -> None:
    value = session.create_ortvalue_from_shape_and_type([2, 3], kind, "cpu")
    in_session = getattr(theirs, "create_ortvalue_from_shape_and_type", None)  # since 1.31
    wanted = (in_session or onnxruntime.OrtValue.ortvalue_from_shape_and_type)([2, 3], kind, "cpu")
    for name in ("shape", "data_type", "element_type", "device_name"):
        assert getattr(value, name)() == getattr(wanted, name)()
    value.update_inplace(A)
    np.testing.assert_array_equal(session.run(["sum"], {"a": value, "b": B})[0], A + B)


def test_values_in_a_sessions_memory_go_on_when_it_is_closed() -> None:
    session = ortmulti.InferenceSession(_models.add_mul(3))
    value = session.create_ortvalue_from_shape_and_type([1000], np.float64, "cpu")
    session.close()
    del session
    gc.collect()
    value.update_inplace(np.arange(1000.0))
    array = value.numpy()
    del value
    gc.collect()
    scratch = [np.full(1000, 7.0) for _ in range(50)]
    assert array.sum() == 499500
    assert len(scratch) == 50


def test_values_that_a_session_cannot_have_are_refused(session: ortmulti.InferenceSession) -> None:
    create = session.create_ortvalue_from_shape_and_type
    for call, error in (
        (lambda: create([2, -3], np.float32, "cpu"), ortmulti.InvalidArgument),
        (lambda: create([2**62, 2**62], np.float32, "cpu"), ortmulti.InvalidArgument),
        (lambda: create([2], np.str_, "cpu"), ortmulti.NotImplemented),
        (lambda: create([2], 99, "cpu"), ortmulti.NotImplemented),
        (lambda: create(2, np.float32, "cpu"), ortmulti.InvalidType),
        (lambda: create([2], np.float32, "toaster"), ortmulti.InvalidArgument),
        (lambda: create([2], np.float32, "cuda", 99), ortmulti.DeviceError),
        (lambda: create([2], np.float32, 3), ortmulti.InvalidType),
    ):
        with pytest.raises(error):
            call()
    closed = ortmulti.InferenceSession(_models.add_mul(3))
    closed.close()
    refused: list[Callable[[], Any]] = [
        lambda: closed.create_ortvalue_from_shape_and_type([2], np.float32, "cpu"),
        lambda: closed.run_with_ortvaluevector(None, ["a", "b"], [make(A), make(B)], ["sum"], OrtValueVector(), [CPU]),
        lambda: ortmulti.SessionIOBinding(closed),
    ]
    for use in refused:
        with pytest.raises(ortmulti.ClosedError):
            use()


def test_a_forked_child_is_told(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_models.matmul(64, 1))
    code = """
        import os, sys
        import numpy as np
        import ortmulti

        options = ortmulti.SessionOptions()
        options.intra_op_num_threads = 2
        session = ortmulti.InferenceSession(sys.argv[1], options)
        x = session.create_ortvalue_from_shape_and_type([1, 64], np.float32, "cpu")
        x.update_inplace(np.ones((1, 64), np.float32))
        device, fetches = ortmulti.OrtDevice.make("cpu", 0), ortmulti.OrtValueVector()

        def run():
            session.run_with_ortvaluevector(None, ["x"], [x], ["y"], fetches, [device])

        child = os.fork()
        if child == 0:
            refused = 0
            for call in (run, lambda: session.create_ortvalue_from_shape_and_type([1], np.float32, "cpu")):
                try:
                    call()
                except ortmulti.ForkError:
                    refused += 1
            assert x.numpy().sum() == 64
            os._exit(0 if refused == 2 and len(fetches) == 0 else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        run()
        print(status, fetches[0].shape())
    """
    assert check_child(code, path) == "0 [1, 64]\n"


def test_tensors_are_copied() -> None:
    targets = [np.zeros_like(A), np.zeros((3, 2), np.float32), np.zeros(0)]
    native = onnxruntime.OrtValue.ortvalue_from_numpy(B)
    ortmulti.copy_tensors([make(A), native, make(np.zeros((0, 4)))], [make(target) for target in targets])
    np.testing.assert_array_equal(targets[0], A)
    np.testing.assert_array_equal(targets[1], B.reshape(3, 2))
    theirs = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(A))
    ortmulti.copy_tensors([make(A)], [theirs])
    np.testing.assert_array_equal(theirs.numpy(), A)


def test_what_cannot_be_copied_is_refused_before_anything_is() -> None:
    target = np.zeros_like(A)
    frozen = A.copy()
    frozen.flags.writeable = False
    good = make(A), make(target)
    for source, into, error in (
        ([good[0]], [], ortmulti.InvalidArgument),
        ([], [], ortmulti.InvalidArgument),
        ([good[0], make(A)], [good[1], make(np.zeros(5, np.float32))], ortmulti.InvalidArgument),
        ([good[0], make(A)], [good[1], make(np.zeros((2, 3), np.int32))], ortmulti.InvalidType),
        ([good[0], make(np.array(["x"]))], [good[1], make(np.array(["y"]))], ortmulti.NotImplemented),
        ([good[0], A], [good[1], good[1]], ortmulti.InvalidType),
        ([good[0], make(A)], [good[1], make(frozen)], ortmulti.InvalidArgument),
        (good[0], good[1], ortmulti.InvalidType),
        (3, [good[1]], ortmulti.InvalidType),
    ):
        with pytest.raises(error):
            ortmulti.copy_tensors(source, into)
        assert (target == 0).all()
    with pytest.raises(ortmulti.NotImplemented, match="stream"):
        ortmulti.copy_tensors([good[0]], [good[1]], object())
