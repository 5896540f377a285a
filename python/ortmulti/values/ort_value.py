"""onnxruntime's OrtValue: values that runs read and write, in the memory of the CPU or of a GPU."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ortmulti import _core, checks, errors
from ortmulti._runtime import startup
from ortmulti._runtime.closing import stays_here
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.values import onnxruntime_values
from ortmulti.values.ort_device import device_name

__all__ = ["OrtValue", "copy_tensors"]

_STREAM = 1  # CUDA's default stream, as DLPack names it
_DLPACK_CUDA = 2


def element_type_number(element_type: object) -> int:
    """Return the number of an ONNX type: itself, or that of what NumPy makes a dtype of."""
    if isinstance(element_type, (int, np.integer)) and not isinstance(element_type, bool):
        return _type_number(int(element_type))
    if element_type is None:
        raise InvalidType("element_type is a NumPy dtype or the number of an ONNX type, not None")
    try:
        dtype = np.dtype(element_type)  # type: ignore[call-overload]
    except TypeError:
        raise InvalidType(
            f"element_type is a NumPy dtype or the number of an ONNX type, not {element_type!r}"
        ) from None
    return _core.element_type_of(dtype)


def dimensions(shape: object) -> list[int]:
    """Return a shape as ints."""
    try:
        sizes = [operator.index(size) for size in shape]  # type: ignore[attr-defined]
    except TypeError:
        raise InvalidType(f"shape is a sequence of int, not {shape!r}") from None
    if any(abs(size) >= 2**63 for size in sizes):
        raise InvalidArgument(f"no memory has room for a tensor of shape {sizes}")
    return sizes


def _type_number(number: int) -> int:
    if not 0 <= number < 2**31:
        raise errors.NotImplemented(f"there are no values of element type {number}")
    return number


def _array(name: str, value: object) -> np.ndarray[Any, Any]:
    if not isinstance(value, np.ndarray):
        raise InvalidType(f"{name} is a numpy.ndarray, not {type(value).__name__}")
    return value


class OrtValue:
    """A value of ONNX Runtime, under onnxruntime's interface. Values are made by the class's methods.

    Everything that refers to a value's memory keeps the value alive: its arrays and capsules, and sessions' bindings.
    If this class made a value on a GPU, the last reference frees it.
    """

    __slots__ = ("__weakref__", "_core", "_kept")
    __reduce__ = stays_here("send its array, numpy()")

    def __init__(self, ortvalue: _core.OrtValue | OrtValue, numpy_obj: object = None, session: object = None) -> None:
        if isinstance(ortvalue, OrtValue):  # an item of an OrtValueVector, or what `_ortvalue` is
            self._core: _core.OrtValue = ortvalue._core
            self._kept: tuple[object, ...] = (numpy_obj, session, ortvalue._kept)
            return
        if not isinstance(ortvalue, _core.OrtValue):
            raise InvalidArgument(
                f"an OrtValue is made by OrtValue.ortvalue_from_numpy or its like, not of {type(ortvalue).__name__}"
            )
        self._core = ortvalue
        self._kept = (numpy_obj, session)

    @property
    def _ortvalue(self) -> Self:
        """The value of onnxruntime's C namespace, which programs pass to `OrtValue` and similar classes."""
        return self

    def _get_c_value(self) -> Self:
        return self

    def __copy__(self) -> Self:
        return type(self)(self)

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: np.ndarray[Any, Any], /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> Self:
        """Make a tensor from an array.

        On the CPU it uses the array's memory. It has a copy on a GPU, and for arrays that are not C-contiguous, not
        aligned, byte-swapped or of strings. A value over a read-only array cannot be written to.

        Args:
            numpy_obj: An array of any shape, of a dtype that ONNX Runtime has: bool, ints, floats, str, bytes, object.
            device_type: ``"cpu"`` (default) or ``"cuda"``; ``"gpu"`` with NVIDIA's ``vendor_id``.
            device_id: CUDA's number of the GPU; default 0.
            vendor_id: The device's PCI vendor id; default -1: as ``device_type`` says.

        Raises:
            InvalidType: It is not an array, or has another dtype.
            InvalidArgument: ``device_type`` is unknown, or ``device_id`` negative.
            DeviceError: The GPU does not exist or cannot be used.
            NotImplemented: The device is neither the CPU nor a CUDA device, or strings are for a GPU.
            OutOfMemory: The GPU has too little free memory.
        """
        array = _array("numpy_obj", numpy_obj)
        device = device_name(device_type, device_id, vendor_id)
        startup.ensure_open()
        return cls(_core.OrtValue.from_array(array, device))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: np.ndarray[Any, Any], /, onnx_element_type: int) -> Self:
        """Make a tensor on the CPU over an array's memory, and treat its elements as an ONNX type of the same size.

        Args:
            data: An array of any shape, such as uint16 for bfloat16. An array that is not contiguous is copied.
            onnx_element_type: A number of ``onnx.TensorProto.DataType``.

        Raises:
            InvalidType: ``data`` is not an array.
            InvalidArgument: The elements have another size.
            NotImplemented: The number is no type, or a type without a fixed size, such as strings.
        """
        array, number = _array("data", data), _type_number(checks.integer("onnx_element_type", onnx_element_type))
        startup.ensure_open()
        return cls(_core.OrtValue.from_array_as(array, number))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: None = None,
    ) -> Self:
        """Make a tensor in new memory. Its elements are not initialized; strings are empty.

        Args:
            shape: The dimensions, 0 or more each.
            element_type: A NumPy dtype or what makes one, or a number of ``onnx.TensorProto.DataType``.
            device_type, device_id, vendor_id: As `ortvalue_from_numpy`.
            memory_info: Not supported; None.

        Raises:
            InvalidType, InvalidArgument, NotImplemented, DeviceError: The type, shape or device is not valid.
            OutOfMemory: The device has too little free memory.
        """
        if memory_info is not None:
            raise errors.NotImplemented("memory_info is not supported; name the device by device_type and device_id")
        device = device_name(device_type, device_id, vendor_id)
        sizes = dimensions(shape)
        startup.ensure_open()
        return cls(_core.OrtValue.allocate(sizes, element_type_number(element_type), device))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> Self:
        """Make a tensor over the memory of an object with ``__dlpack__``, without a copy; it keeps the object alive.

        On return, earlier work of the default stream is done. So is the work of the object's own stream, if its library
        follows the protocol.

        Args:
            data: A contiguous tensor on the CPU or a CUDA device, of PyTorch, NumPy, CuPy, JAX, onnxruntime, ...; or an
                unused capsule ``"dltensor"``. The elements of a bool capsule may become uint8.

        Raises:
            InvalidType: It is no such object, or ONNX Runtime does not have the elements' type.
            InvalidArgument: The tensor is not contiguous or not aligned.
            NotImplemented: The tensor is on another device, or onnxruntime cannot hand over its value.
            BufferError: The array is read-only, and NumPy does not export it.
        """
        if onnxruntime_values.is_one(data):
            return cls(onnxruntime_values.take(data))
        startup.ensure_open()
        if not hasattr(data, "__dlpack__"):
            return cls(_core.OrtValue.from_dlpack(data, False, data))
        device = data.__dlpack_device__() if hasattr(data, "__dlpack_device__") else (1, 0)
        on_gpu = device[0] == _DLPACK_CUDA and not isinstance(data, OrtValue)
        capsule = data.__dlpack__(stream=_STREAM) if on_gpu else data.__dlpack__()
        return cls(_core.OrtValue.from_dlpack(capsule, _is_bool(data), data))

    def __dlpack__(self, *, stream: object = None) -> object:
        """Return the tensor as a DLPack capsule, without a copy. The capsule keeps this value alive.

        With ONNX Runtime before 1.32, bool becomes uint8, as in onnxruntime.

        Args:
            stream: Not needed: runs and updates have written the value when they return. After a run with
                ``disable_synchronize_execution_providers``, call `IOBinding.synchronize_outputs` first. Your streams
                must finish their work on the memory before a run or an update writes to it again. They must also finish
                before you drop the last reference to it.

        Raises:
            InvalidType: This is not a tensor.
            NotImplemented: The protocol has no type for the elements, such as strings.
            BufferError: The value is over a read-only array.
        """
        return self._core.dlpack(_bool_is_uint8())

    def to_dlpack(self) -> object:
        """Same as `__dlpack__`, under the name in onnxruntime's C namespace."""
        return self._core.dlpack(_bool_is_uint8())

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's number for the kind of device (1: CPU, 2: CUDA), and the device's number."""
        return self._core.dlpack_device()

    def data_ptr(self) -> int:
        """Return the address of the tensor's first element, on its device.

        Raises:
            InvalidType: This is not a tensor, or it has strings.
        """
        return self._core.data_ptr()

    def device_name(self) -> str:
        """Return where the tensor's memory is: ``"cpu"`` or ``"cuda"``."""
        return self._core.device().partition(":")[0]

    def shape(self) -> list[int]:
        """Return the tensor's dimensions."""
        return self._core.shape()

    def data_type(self) -> str:
        """Return the type as models declare it, such as ``"tensor(int64)"``."""
        return self._core.data_type()

    def element_type(self) -> int:
        """Return the number of the tensor's type in ``onnx.TensorProto.DataType``."""
        return self._core.element_type()

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of the tensor's elements. Raises NotImplemented for strings."""
        return self._core.size_in_bytes()

    def has_value(self) -> bool:
        """Return False for an optional without value, and for an output before the first run."""
        return self._core.has_value()

    def is_tensor(self) -> bool:
        """Return whether the value is a dense tensor."""
        return self._core.is_tensor()

    def is_sparse_tensor(self) -> bool:
        """Return whether the value is a sparse tensor."""
        return self.has_value() and self.data_type().startswith("sparse_tensor(")

    def is_tensor_sequence(self) -> bool:
        """Return whether the value is a sequence of tensors."""
        return self.has_value() and self.data_type().startswith("seq(tensor(")

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the tensor as an array of its shape and dtype.

        On the CPU the array uses the value's memory and keeps it alive; over a read-only array it is read-only. Strings
        (dtype object) and values on a GPU are copied.

        Raises:
            InvalidType: This is not a tensor.
            NotImplemented: NumPy has no dtype for its elements.
        """
        return self._core.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """`numpy` for ``np.asarray(value)``, converted and copied as asked."""
        array = self.numpy()
        if copy is not None:
            return np.array(array, dtype=dtype, copy=copy)
        return array if dtype is None else np.asarray(array, dtype=dtype)

    def update_inplace(self, data: np.ndarray[Any, Any] | OrtValue) -> None:
        """Copy an array's or another value's elements into this tensor's memory, whose address stays.

        Args:
            data: An array of any layout with as many elements of the same type (or of the same size, if NumPy does not
                have the type). Or a value with as many bytes, this package's or onnxruntime's, on any device.

        Raises:
            InvalidType: It is neither an array nor a value, or has another type.
            InvalidArgument: The number of bytes differs, or this value is over a read-only array.
            NotImplemented: onnxruntime cannot hand over its value.
        """
        source = find_value(data)
        if source is None:
            self._core.update(_array("data", data))
        else:
            self._core.copy_from(source)

    def __repr__(self) -> str:
        if not self.has_value():
            return "<OrtValue, empty>"
        shape = f" {self.shape()} on {self._core.device()}" if self.is_tensor() else ""
        return f"<OrtValue {self.data_type()}{shape}>"


@functools.cache
def _bool_is_uint8() -> bool:
    return onnxruntime_values.lacks_types(_core.onnxruntime_version())


def _is_bool(data: object) -> bool:
    # DLPack's first form has no bool, so that the source is asked.
    if isinstance(data, OrtValue) or (not hasattr(data, "dtype") and callable(getattr(data, "data_type", None))):
        return bool(data.data_type() == "tensor(bool)")  # type: ignore[attr-defined]
    dtype = getattr(data, "dtype", None)
    return getattr(dtype, "name", str(dtype)) in ("bool", "bool_", "torch.bool")


def find_value(value: object) -> _core.OrtValue | None:
    """Return the core's value of an `OrtValue`, or one over the memory of onnxruntime's, which it keeps alive; or None.

    Raises:
        NotImplemented: onnxruntime's value is of a type that DLPack does not have, or on another device.
    """
    if isinstance(value, OrtValue):
        return value._core
    return onnxruntime_values.take(value) if onnxruntime_values.is_one(value) else None


def core_value(name: str, value: object) -> _core.OrtValue:
    """Same as `find_value`, of an argument that must be a value."""
    found = find_value(value)
    if found is None:
        raise InvalidType(f"{name} takes an ortmulti.OrtValue, not {type(value).__name__}")
    return found


_core.set_value_reader(find_value)  # for InferenceSession.run, which takes values beside arrays


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: None = None) -> None:
    """Copy tensors into the memory of others, on any devices. The copies are done on return.

    Args:
        src: The tensors to copy, at least one; onnxruntime's too.
        dst: As many tensors, each with the type and the number of bytes of its source.
        stream: Not supported; None.

    Raises (before anything is copied):
        InvalidType: An argument is not a sequence of tensors, or two types differ.
        InvalidArgument: A sequence is empty, the lengths or the bytes differ, or one of ``dst`` is over a read-only
            array.
        NotImplemented: Tensors have strings, a stream was given, or onnxruntime cannot hand over its value by DLPack.
    """
    if stream is not None:
        raise errors.NotImplemented("stream is not supported: copies are done on return")
    sources, targets = (
        [core_value(name, value) for value in checks.iterable(name, values)]
        for name, values in (("src", src), ("dst", dst))
    )
    if len(sources) != len(targets) or not sources:
        raise InvalidArgument(f"src and dst need as many tensors, at least one: got {len(sources)} and {len(targets)}")
    for source, target in zip(sources, targets, strict=True):
        if source.data_type() != target.data_type():
            raise InvalidType(f"a {source.data_type()} cannot be copied to a {target.data_type()}")
        if source.size_in_bytes() != target.size_in_bytes():
            raise InvalidArgument(f"a tensor of shape {source.shape()} cannot be copied to one of {target.shape()}")
        if not target.is_writable():
            raise InvalidArgument("one of dst is over a read-only array")
    for source, target in zip(sources, targets, strict=True):
        target.copy_from(source)
