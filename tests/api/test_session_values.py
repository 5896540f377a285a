"""Bindings of onnxruntime's C namespace, values in a session's memory, and copies between values."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as state

import ortmulti
from ortmulti import OrtDevice, OrtValueVector
from tests.support import onnx_models
from tests.support.arrays import read_only
from tests.support.bindings import A, B, make

CPU = OrtDevice.make("cpu", 0)
THEIR_CPU = state.OrtDevice(0, 0, 0)


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
    session = ortmulti.InferenceSession(onnx_models.add_mul(3))
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
    good = make(A), make(target)
    for source, into, error in (
        ([good[0]], [], ortmulti.InvalidArgument),
        ([], [], ortmulti.InvalidArgument),
        ([good[0], make(A)], [good[1], make(np.zeros(5, np.float32))], ortmulti.InvalidArgument),
        ([good[0], make(A)], [good[1], make(np.zeros((2, 3), np.int32))], ortmulti.InvalidType),
        ([good[0], make(np.array(["x"]))], [good[1], make(np.array(["y"]))], ortmulti.NotImplemented),
        ([good[0], A], [good[1], good[1]], ortmulti.InvalidType),
        ([good[0], make(A)], [good[1], make(read_only(A))], ortmulti.InvalidArgument),
        (good[0], good[1], ortmulti.InvalidType),
        (3, [good[1]], ortmulti.InvalidType),
    ):
        with pytest.raises(error):
            ortmulti.copy_tensors(source, into)
        assert (target == 0).all()
    with pytest.raises(ortmulti.NotImplemented, match="stream"):
        ortmulti.copy_tensors([good[0]], [good[1]], object())
