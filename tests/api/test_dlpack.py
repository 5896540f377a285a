"""DLPack in both directions: with NumPy, with onnxruntime's own values, and with PyTorch where it is installed."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
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
from tests.support import onnx_models
from tests.support.arrays import SHAPES, read_only
from tests.support.bindings import BOOL_IS_UINT8, from_dlpack
from tests.support.dlpack import Tensor
from tests.support.lifetimes import alive
from tests.support.pools import in_threads

make = OrtValue.ortvalue_from_numpy
theirs = onnxruntime.OrtValue.ortvalue_from_numpy

DTYPES = [dtype for dtype in onnx_models.NUMERIC.values() if dtype != np.bool_]
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))


# Ways of an array's memory through the packages.
WAYS: dict[str, list[Callable[[Any], Any]]] = {
    "numpy": [make, OrtValue.numpy],
    "from numpy": [OrtValue.from_dlpack, OrtValue.numpy],
    "to numpy": [make, np.from_dlpack],
    "from onnxruntime": [theirs, OrtValue.from_dlpack, OrtValue.numpy],
    "to onnxruntime": [OrtValue.from_dlpack, from_dlpack, lambda value: value.numpy()],
    "capsule": [make, OrtValue.__dlpack__, OrtValue.from_dlpack, np.from_dlpack],
}


@pytest.mark.parametrize("way", WAYS)
@given(ARRAYS)
def test_memory_is_handed_on(way: str, array: np.ndarray) -> None:
    held: Any = array
    for step in WAYS[way]:
        held = step(held)
        if hasattr(held, "data_type"):
            assert (held.data_type(), held.shape()) == (theirs(array).data_type(), list(array.shape))
    np.testing.assert_array_equal(held, array)
    assert held.dtype == array.dtype
    if array.size:
        assert held.ctypes.data == array.ctypes.data


@pytest.mark.parametrize("way", WAYS)
def test_memory_lives_as_long_as_its_last_holder(way: str) -> None:
    held: Any = np.arange(1000.0)
    watched = weakref.ref(held)
    for step in WAYS[way]:
        held = step(held)
        assert alive(watched) == [True]
    assert held[-1] == 999
    del held
    assert alive(watched) == [False]


@pytest.mark.parametrize("source", [lambda array: array, make, theirs])
def test_bool_comes_as_bool_and_goes_as_onnxruntimes(source: Any) -> None:
    array = np.array([True, False, True])
    given = np.uint8 if BOOL_IS_UINT8 else np.bool_
    value = OrtValue.from_dlpack(source(array))
    assert value.data_type() == "tensor(bool)"
    assert value.data_ptr() == array.ctypes.data
    assert np.from_dlpack(value).dtype == given
    if hasattr(onnxruntime.OrtValue, "__dlpack__"):
        assert np.from_dlpack(theirs(array)).dtype == given
    assert from_dlpack(make(array)).data_type() in ("tensor(bool)", "tensor(uint8)")


@pytest.mark.parametrize(("bool_is_uint8", "dtype"), [(True, np.uint8), (False, np.bool_)])
def test_bool_goes_by_either_name(bool_is_uint8: bool, dtype: type) -> None:
    array = np.array([True, False, True])
    for source, expected in ((array, dtype), (array.view(np.uint8), np.uint8)):
        capsule = make(source)._core.dlpack(bool_is_uint8)
        giver: Any = SimpleNamespace(__dlpack__=lambda capsule=capsule, **_: capsule, __dlpack_device__=lambda: (1, 0))
        assert np.from_dlpack(giver).dtype == expected


def test_bfloat16_goes_between_the_packages() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    kind = TensorProto.BFLOAT16
    ours = OrtValue.from_dlpack(onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind))
    assert (ours.data_type(), ours.data_ptr()) == ("tensor(bfloat16)", bits.ctypes.data)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)
    back = from_dlpack(value)
    assert (back.data_type(), back.data_ptr()) == ("tensor(bfloat16)", bits.ctypes.data)


# onnxruntime 1.32 was the first to give and take them.
BETWEEN = pytest.mark.skipif(BOOL_IS_UINT8, reason="needs onnxruntime 1.32")


@pytest.mark.parametrize(
    ("giver", "take"),
    [
        (OrtValue, OrtValue.from_dlpack),
        pytest.param(onnxruntime.OrtValue, OrtValue.from_dlpack, marks=BETWEEN),
        pytest.param(OrtValue, from_dlpack, marks=BETWEEN),
    ],
    ids=["ours", "from onnxruntime", "to onnxruntime"],
)
@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4", "INT4"])
def test_small_types_are_given_and_taken(giver: Any, take: Callable[[Any], Any], name: str) -> None:
    kind = TensorProto.DataType.Value(name)
    value = giver.ortvalue_from_shape_and_type([3], kind)
    taken = take(value)
    assert (taken.element_type(), taken.shape(), taken.data_ptr()) == (kind, [3], value.data_ptr())


def test_a_capsule_is_taken_once() -> None:
    array = np.arange(3.0)
    capsule = array.__dlpack__()
    assert OrtValue.from_dlpack(capsule).data_ptr() == array.ctypes.data
    with pytest.raises(ortmulti.InvalidType, match="an unused capsule"):
        OrtValue.from_dlpack(capsule)
    assert OrtValue.from_dlpack(make(array).__dlpack__(stream=1)).data_ptr() == array.ctypes.data


def test_a_run_reads_and_writes_other_libraries_memory() -> None:
    session = ortmulti.InferenceSession(onnx_models.add_mul(3))
    a, target = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", OrtValue.from_dlpack(a))
    binding.bind_ortvalue_input("b", OrtValue.from_dlpack(a))
    binding.bind_ortvalue_output("sum", OrtValue.from_dlpack(target))
    binding.bind_output("product")
    session.run_with_iobinding(binding)
    assert (target == 2).all()
    product = binding.get_outputs()[1]
    taken = np.from_dlpack(product)
    assert taken.ctypes.data == product.data_ptr()
    session.close()
    del session, binding, product
    gc.collect()
    assert (taken == 1).all()


PYTHON = ctypes.pythonapi
PYTHON.PyCapsule_New.restype = ctypes.py_object
PYTHON.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

NUMBERS = (ctypes.c_float * 16)(*range(16))
NAME = b"dltensor"


def tensor(shape: list[int], strides: list[int] | None = None, **fields: Any) -> Tensor:
    """A float32 tensor over NUMBERS, with some fields changed."""
    made = Tensor(ctypes.addressof(NUMBERS), 1, 0, len(shape), 2, 32, 1)
    made.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    if strides is not None:
        made.strides = (ctypes.c_int64 * max(1, len(strides)))(*strides)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


KEPT = []  # what nobody deletes


def take(made: Tensor) -> OrtValue:
    KEPT.append(made)
    return OrtValue.from_dlpack(PYTHON.PyCapsule_New(ctypes.addressof(made), NAME, None))


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "expected"),
    [
        ([2, 3], None, 0, [[0, 1, 2], [3, 4, 5]]),
        ([2, 3], [3, 1], 4, [[1, 2, 3], [4, 5, 6]]),
        ([1, 3], [99, 1], 0, [[0, 1, 2]]),  # the stride of one element counts for nothing
        ([], [], 8, 2),
        ([0, 3], [7, 7], 0, []),
    ],
)
def test_tensors_of_every_form_are_taken(
    shape: list[int], strides: list[int] | None, offset: int, expected: object
) -> None:
    value = take(tensor(shape, strides, byte_offset=offset))
    assert value.shape() == shape
    assert value.numpy().tolist() == expected


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (tensor([2, 3], [1, 2]), ortmulti.InvalidArgument, "not contiguous"),
        (tensor([2, 3], [6, 1]), ortmulti.InvalidArgument, "not contiguous"),
        (tensor([2**62, 2**62], [2**62, 1]), ortmulti.InvalidArgument, "not contiguous"),
        (tensor([2**62, 2**62]), ortmulti.InvalidArgument, "no memory has room"),
        (tensor([-1]), ortmulti.InvalidArgument, "negative"),
        (tensor([2], byte_offset=2), ortmulti.InvalidArgument, "not aligned"),
        (tensor([2], data=None), ortmulti.InvalidArgument, "address 0"),
        (tensor([2], lanes=2), ortmulti.InvalidType, "2 lanes"),
        (tensor([2], code=5), ortmulti.InvalidType, "32 bits"),
        (tensor([2], code=77), ortmulti.InvalidType, "77"),
        (tensor([2], bits=0), ortmulti.InvalidType, "0 bits"),
        (tensor([2], ndim=-1), ortmulti.InvalidArgument, "dimensions"),
        (tensor([2], device_type=10), ortmulti.NotImplemented, "type 10"),
    ],
)
def test_bad_tensors_are_refused_and_left(made: Tensor, error: type[Exception], message: str) -> None:
    capsule = PYTHON.PyCapsule_New(ctypes.addressof(made), NAME, None)
    for _ in range(2):  # it was not taken
        with pytest.raises(error, match=message):
            OrtValue.from_dlpack(capsule)


def test_bad_sources_are_refused() -> None:
    array = np.ones((2, 3), np.float32)
    frozen = read_only(array)
    for wrong in (object(), None, 3, "dltensor", PYTHON.PyCapsule_New(1, b"other", None)):
        with pytest.raises(ortmulti.InvalidType, match="__dlpack__"):
            OrtValue.from_dlpack(wrong)
    with pytest.raises(ortmulti.InvalidArgument, match="not contiguous"):
        OrtValue.from_dlpack(array.T)
    with pytest.raises(ortmulti.InvalidType, match="has no tensors"):
        OrtValue.from_dlpack(array.astype(np.complex64))
    with pytest.raises(BufferError):
        OrtValue.from_dlpack(frozen)
    with pytest.raises(BufferError, match="read-only"):
        make(frozen).__dlpack__()
    with pytest.raises(ortmulti.NotImplemented):
        make(np.array(["text"])).__dlpack__()
    assert make(array).__dlpack_device__() == (1, 0)


def test_many_threads_give_and_take() -> None:
    array = np.arange(1000.0)

    def work(_: int) -> None:
        for _ in range(200):
            taken = np.from_dlpack(OrtValue.from_dlpack(make(array)))
            assert taken.ctypes.data == array.ctypes.data

    in_threads(4, work)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torchs_tensors_go_in_and_out(device: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12, dtype=torch.float32, device=device).reshape(3, 4)
    value = OrtValue.from_dlpack(tensor)
    assert (value.data_ptr(), value.device_name()) == (tensor.data_ptr(), device)
    np.testing.assert_array_equal(value.numpy(), tensor.cpu().numpy())
    back = torch.from_dlpack(value)
    assert back.data_ptr() == tensor.data_ptr()
    del value, tensor
    gc.collect()
    assert back.sum().item() == 66
    assert OrtValue.from_dlpack(torch.tensor([True], device=device)).data_type() == "tensor(bool)"


@pytest.mark.gpu
def test_what_torchs_streams_write_is_there() -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        large = torch.ones(4096, 4096, device="cuda")
        for _ in range(20):
            large = large @ large / 4096
        value = OrtValue.from_dlpack(large)
    assert (value.numpy() == 1).all()
