"""OrtValue against onnxruntime's, and what it shares with arrays."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto

import ortmulti
from ortmulti import OrtValue
from tests.support import gpus, onnx_models
from tests.support.arrays import SHAPES, arrays, read_only
from tests.support.lifetimes import alive
from tests.support.processes import check_child, lines

make = OrtValue.ortvalue_from_numpy


def facts(value: Any) -> dict[str, object]:
    """What both packages say of a value."""
    names = ["shape", "data_type", "element_type", "device_name", "tensor_size_in_bytes"]
    names += ["has_value", "is_tensor", "is_sparse_tensor", "is_tensor_sequence"]
    return {name: getattr(value, name)() for name in names if hasattr(onnxruntime.OrtValue, name)}


ARRAYS = st.sampled_from(list(onnx_models.NUMERIC.values())).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))


@given(ARRAYS)
def test_values_say_what_onnxruntimes_say(array: np.ndarray) -> None:
    value = make(array)
    theirs = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    assert facts(value) == facts(theirs)
    np.testing.assert_array_equal(value.numpy(), theirs.numpy())
    assert value.numpy().dtype == theirs.numpy().dtype


@given(arrays())
def test_arrays_of_any_layout_come_back_over_the_same_memory_where_it_can_be(typed: tuple[int, np.ndarray]) -> None:
    _, array = typed
    value = make(array)
    found = value.numpy()
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)
    shared = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
    if array.size:
        assert (value.data_ptr() == array.ctypes.data) == shared
        assert found.ctypes.data == value.data_ptr()
        assert found.flags.writeable == (array.flags.writeable or not shared)


@given(SHAPES, st.sampled_from(list(onnx_models.NUMERIC)), st.booleans())
def test_new_memory_has_the_shape_and_type(shape: tuple[int, ...], element_type: int, by_dtype: bool) -> None:
    asked = onnx_models.NUMERIC[element_type] if by_dtype else element_type
    value = OrtValue.ortvalue_from_shape_and_type(shape, asked)
    assert facts(value) == facts(onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, asked))
    value.numpy()[...] = 1
    assert value.numpy().sum() == np.prod(shape, dtype=int)


@pytest.mark.parametrize(
    ("element_type", "dtype"),
    [(TensorProto.BFLOAT16, np.uint16), (TensorProto.FLOAT8E4M3FN, np.uint8), (TensorProto.FLOAT16, np.int16)],
)
def test_arrays_are_taken_for_other_types(element_type: int, dtype: type) -> None:
    array = np.arange(6, dtype=dtype).reshape(2, 3)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_type)
    assert facts(value) == facts(onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_type))
    assert value.data_ptr() == array.ctypes.data
    if element_type != TensorProto.FLOAT16:
        value.update_inplace(array[::-1].copy())
        np.testing.assert_array_equal(array, np.arange(6).reshape(2, 3)[::-1])
    strided = OrtValue.ortvalue_from_numpy_with_onnx_type(array[:, ::2], element_type)
    assert strided.shape() == [2, 2]
    assert strided.data_ptr() != array.ctypes.data


def test_strings_are_copied_both_ways() -> None:
    texts = np.array([["a", "bé"], ["", "nul\0inside"]], object)
    for array in (texts, texts.astype(str)):
        value = make(array)
        assert value.data_type() == "tensor(string)"
        assert value.shape() == [2, 2]
        np.testing.assert_array_equal(value.numpy(), texts)
    assert make(np.array([b"xy"])).numpy().tolist() == ["xy"]
    with pytest.raises(ortmulti.NotImplemented):
        value.update_inplace(texts)
    with pytest.raises(ortmulti.InvalidType, match="no address"):
        value.data_ptr()
    empty = OrtValue.ortvalue_from_shape_and_type([2], np.str_)
    assert empty.numpy().tolist() == ["", ""]


def test_values_are_arrays_to_numpy() -> None:
    array = np.arange(3.0)
    value = make(array)
    assert np.asarray(value).ctypes.data == array.ctypes.data
    assert np.asarray(value, np.float32).dtype == np.float32
    assert np.array(value).ctypes.data != array.ctypes.data
    assert repr(value) == "<OrtValue tensor(double) [3] on cpu>"


def test_what_onnxruntime_allocated_lives_as_long_as_its_arrays() -> None:
    value = OrtValue.ortvalue_from_shape_and_type([1000], np.int64)
    address = value.data_ptr()
    array = value.numpy()
    array[:] = 7
    watched = weakref.ref(value)
    del value
    assert alive(watched) == [False]
    other = OrtValue.ortvalue_from_shape_and_type([1000], np.int64)
    assert other.data_ptr() != address
    assert (array == 7).all()


FLOATS = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: make(3), ortmulti.InvalidType, "numpy.ndarray, not int"),
        (lambda: make(FLOATS.astype(np.complex64)), ortmulti.InvalidType, "complex64"),
        (lambda: make(np.array(["2020"], "M8[Y]")), ortmulti.InvalidType, "datetime64"),
        (lambda: make(FLOATS, "toaster"), ortmulti.InvalidArgument, "'toaster'"),
        (lambda: make(FLOATS, "CPU"), ortmulti.InvalidArgument, "'CPU'"),
        (lambda: make(FLOATS, "npu"), ortmulti.NotImplemented, "'npu'"),
        (lambda: make(FLOATS, "gpu", 0, 0x1002), ortmulti.NotImplemented, "'gpu'"),
        (lambda: make(FLOATS, "cuda", 99), ortmulti.DeviceError, "no device cuda:99"),
        (lambda: make(FLOATS, "cpu", -1), ortmulti.InvalidArgument, "0 or more"),
        (lambda: make(FLOATS, "cpu", 1.5), ortmulti.InvalidType, "device_id"),
        (lambda: make(FLOATS, None), ortmulti.InvalidType, "device_type"),
        (lambda: OrtValue(FLOATS), ortmulti.InvalidArgument, "ndarray"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([-1], 1), ortmulti.InvalidArgument, "negative"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([2**62, 4], 1), ortmulti.InvalidArgument, "no memory"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([2**80], 1), ortmulti.InvalidArgument, "no memory"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([2**53], 1), ortmulti.OutOfMemory, "memory|alloc"),
        (lambda: OrtValue.ortvalue_from_shape_and_type("ab", 1), ortmulti.InvalidType, "shape"),
        (lambda: OrtValue.ortvalue_from_shape_and_type(None, 1), ortmulti.InvalidType, "shape"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([1], None), ortmulti.InvalidType, "element_type"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([1], "no dtype"), ortmulti.InvalidType, "'no dtype'"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([1], np.complex64), ortmulti.InvalidType, "complex64"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([1], 99), ortmulti.NotImplemented, "99"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([1], 2**40), ortmulti.NotImplemented, "1099511627776"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([1], 1, memory_info=3), ortmulti.NotImplemented, "memory_info"),
        (lambda: OrtValue.ortvalue_from_numpy_with_onnx_type(FLOATS, 16), ortmulti.InvalidArgument, "2 bytes"),
        (lambda: OrtValue.ortvalue_from_numpy_with_onnx_type(FLOATS, 99), ortmulti.NotImplemented, "99"),
        (lambda: OrtValue.ortvalue_from_numpy_with_onnx_type(FLOATS, -(2**40)), ortmulti.NotImplemented, "-109"),
        (lambda: OrtValue.ortvalue_from_numpy_with_onnx_type(FLOATS, 8), ortmulti.NotImplemented, "string"),
        (lambda: OrtValue.ortvalue_from_numpy_with_onnx_type([1], 16), ortmulti.InvalidType, "not list"),
        (lambda: make(FLOATS).update_inplace([1]), ortmulti.InvalidType, "not list"),
        (lambda: make(FLOATS).update_inplace(np.zeros(7, np.float32)), ortmulti.InvalidArgument, "28 bytes"),
        (lambda: make(FLOATS).update_inplace(np.zeros((2, 3))), ortmulti.InvalidType, "float64"),
        (lambda: make(FLOATS).update_inplace(make(np.zeros(7))), ortmulti.InvalidArgument, "56 bytes"),
        (lambda: make(read_only(FLOATS)).update_inplace(FLOATS), ortmulti.InvalidArgument, "read-only"),
    ],
)
def test_bad_arguments_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_values_on_gpus_have_memory_of_their_own(memory_driver: dict[str, str]) -> None:
    code = """
        import ctypes, gc
        import numpy as np
        from ortmulti import OrtDevice, OrtValue, OrtValueVector, copy_tensors

        driver = ctypes.CDLL("libcuda.so.1")
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        value = OrtValue.ortvalue_from_numpy(array.T, "cuda", 1)
        print(value, value.device_name(), value.__dlpack_device__(), value.shape(), driver.live())
        assert np.array_equal(value.numpy(), array.T)
        value.update_inplace(np.full((3, 2), 5, np.float32))
        assert (value.numpy() == 5).all() and array[1, 2] == 5 and array[0, 0] == 0
        other = OrtValue.ortvalue_from_shape_and_type([6], np.float32, "gpu", 2, 0x10de)
        other.update_inplace(value)  # of another GPU
        assert (other.numpy() == 5).all()
        on_cpu = OrtValue.ortvalue_from_numpy(np.zeros(6, np.float32))
        on_cpu.update_inplace(other)
        other.update_inplace(OrtValue.ortvalue_from_numpy(array))
        assert (on_cpu.numpy() == 5).all() and np.array_equal(other.numpy(), array.reshape(-1))
        value.update_inplace(np.full((3, 2), 7, np.float32))
        copy_tensors([value, other], [other, on_cpu])  # one after the other
        assert (on_cpu.numpy() == 7).all()
        value.update_inplace(np.full((3, 2), 5, np.float32))
        batch = OrtValueVector()
        pointer, device = other.data_ptr(), OrtDevice.make("cuda", 2)
        batch.push_back_batch([other], [pointer], [np.float32], [[2, 3]], [device])
        del other
        gc.collect()
        assert driver.live() == 2 and batch[0].data_ptr() == pointer and (batch[0].numpy() == 7).all()
        other = batch[0]
        del batch
        empty = OrtValue.ortvalue_from_numpy(np.zeros((0, 3)), "cuda")
        assert empty.numpy().shape == (0, 3)
        capsule = value.__dlpack__()
        del value, other, empty
        gc.collect()
        print(driver.live())
        taken = OrtValue.from_dlpack(capsule)
        del capsule
        print(taken, (taken.numpy() == 5).all())
        again = OrtValue.from_dlpack(taken)
        assert again.data_ptr() == taken.data_ptr()
        del taken
        assert (again.numpy() == 5).all()
        del again
        gc.collect()
        print(driver.live())
    """
    assert check_child(code, environment=memory_driver).splitlines() == [
        "<OrtValue tensor(float) [3, 2] on cuda:1> cuda (2, 1) [3, 2] 1",
        "1",
        "<OrtValue tensor(float) [3, 2] on cuda:1> True",
        "0",
    ]


def test_a_full_gpu_and_bad_devices_are_said(memory_driver: dict[str, str]) -> None:
    code = """
        import ctypes

        make = om.OrtValue.ortvalue_from_shape_and_type
        print(error_of(make, [10], np.float32, "cuda", 2))
        print(error_of(make, [2**30], np.float32, "cuda", 0))
        print(error_of(make, [10], np.float32, "cuda", 3))
        print(error_of(make, [10], np.str_, "cuda", 0))
        print(ctypes.CDLL("libcuda.so.1").live())
    """
    environment = {**memory_driver, "FAKE_DRIVER_FULL": "2"}
    full, large, unknown, strings, live = lines(code, b"", environment=environment)
    assert full.startswith("OutOfMemory: the value takes 0 kB on cuda:2")
    assert large.startswith("OutOfMemory: the value takes 4294 MB on cuda:0, which has ")
    assert unknown == "DeviceError: there is no device cuda:3: this process sees 3 CUDA devices"
    assert strings.startswith(
        "NotImplemented: [ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : strings are in the CPU's memory"
    )
    assert live == "0"


def test_values_on_gpus_stay_with_the_parent_after_a_fork(memory_driver: dict[str, str]) -> None:
    code = """
        def child():
            global value
            print(error_of(value.numpy).partition(":")[0], flush=True)
            del value
            os._exit(0)

        value = om.OrtValue.ortvalue_from_numpy(np.ones(3), "cuda")
        print(forked(child), value.numpy().sum())
    """
    assert lines(code, b"", environment=memory_driver) == ["ForkError", "0 3.0"]


@pytest.mark.gpu
def test_values_on_real_gpus() -> None:
    code = """
        import numpy as np
        from ortmulti import OrtValue, _core

        array = np.random.default_rng(0).standard_normal((300, 70))
        for device in range(_core.cuda_device_count()):
            value = OrtValue.ortvalue_from_numpy(array, "cuda", device)
            assert np.array_equal(value.numpy(), array)
            value.update_inplace(array + 1)
            other = OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, "cuda", 0)
            other.update_inplace(value)
            assert np.array_equal(other.numpy(), array + 1)
        print("done")
    """
    assert check_child(code, environment=gpus.VISIBLE, timeout=120) == "done\n"
