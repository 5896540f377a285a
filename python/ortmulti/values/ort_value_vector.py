"""onnxruntime's OrtValueVector: values in a row, as `InferenceSession.run_with_ortvaluevector` takes and fills them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ortmulti import _core, checks
from ortmulti._runtime import startup
from ortmulti._runtime.closing import stays_here
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.values.ort_device import core_device
from ortmulti.values.ort_value import OrtValue, dimensions, element_type_number, find_value

__all__ = ["OrtValueVector"]

_BOOL = "tensor(bool)"


class OrtValueVector:
    """A list of values, with the methods of the class in onnxruntime's C namespace. It keeps the values alive.

    Raises (methods that take an index):
        InvalidType: The index is not an int.
        IndexError: The index is negative or too large.
    """

    __slots__ = ("_values",)
    __reduce__ = stays_here("send their arrays, numpy()")

    def __init__(self) -> None:
        self._values: list[OrtValue] = []

    def push_back(self, dlpack_tensor: Any, is_bool_tensor: bool = False) -> None:
        """Append a value.

        Args:
            dlpack_tensor: An `OrtValue`, or onnxruntime's; or an unused DLPack capsule, whose memory is used in place.
            is_bool_tensor: Whether the elements of a uint8 capsule are bools; default False. onnxruntime has this
                argument in releases before 1.32.

        Raises:
            InvalidType, InvalidArgument, NotImplemented: As `OrtValue.from_dlpack`.
        """
        if isinstance(dlpack_tensor, OrtValue):
            self._values.append(dlpack_tensor)
            return
        value = find_value(dlpack_tensor)
        if value is None:
            startup.ensure_open()
            value = _core.OrtValue.from_dlpack(dlpack_tensor, bool(is_bool_tensor), dlpack_tensor)
        self._values.append(OrtValue(value))

    def push_back_batch(
        self,
        torch_tensors: Sequence[object],
        data_ptrs: Sequence[int],
        element_types: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        devices: Sequence[Any],
    ) -> None:
        """Append values over memory at addresses: all of them, or none if one is not valid.

        Args:
            torch_tensors: The owner of each value's memory; the value keeps it alive.
            data_ptrs: The address of each.
            element_types: A NumPy dtype or what makes one, or a number of ``onnx.TensorProto.DataType``; no strings.
            shapes: The dimensions of each.
            devices: The `OrtDevice` of each: the CPU or a CUDA device.

        Raises:
            InvalidArgument: The sequences have different lengths, or a shape or address is not valid.
            InvalidType, NotImplemented, DeviceError: A type or device is not valid.
        """
        columns = (torch_tensors, data_ptrs, element_types, shapes, devices)
        if len({len(column) for column in columns}) != 1:
            raise InvalidArgument("tensors, addresses, element types, shapes and devices need the same length")
        startup.ensure_open()
        made = []
        for owner, pointer, kind, shape, device in zip(*columns, strict=True):
            on = core_device("devices", device)
            made.append(_core.OrtValue.over(address(pointer), dimensions(shape), element_type_number(kind), on, owner))
        self._values.extend(OrtValue(value) for value in made)

    def reserve(self, count: int) -> None:
        """Do nothing: a list grows by itself."""
        if checks.integer("count", count) < 0:
            raise InvalidType(f"count is 0 or more, not {count}")  # onnxruntime raises TypeError

    def shrink_to_fit(self) -> None:
        """Do nothing, as `reserve`."""

    def element_type_at(self, idx: int) -> int:
        """Return the number of a tensor's type in ``onnx.TensorProto.DataType``."""
        return self[idx].element_type()

    def dlpack_at(self, index: int) -> object:
        """Return a tensor as a DLPack capsule; see `OrtValue.__dlpack__`."""
        return self[index].to_dlpack()

    def bool_tensor_indices(self) -> list[int]:
        """Return the indices of the bool tensors. ONNX Runtime before 1.32 exports them as uint8."""
        return [index for index, value in enumerate(self._values) if value.has_value() and value.data_type() == _BOOL]

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None) -> list[Any]:
        """Return all tensors as DLPack capsules, each converted by a function if one is given.

        Args:
            to_tensor: Converts a capsule, such as ``torch.utils.dlpack.from_dlpack``; None: no conversion.
        """
        capsules = [value.to_dlpack() for value in self._values]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> OrtValue:
        number = checks.integer("the index", index)
        if not 0 <= number < len(self._values):
            raise IndexError(f"there is no value {number} among {len(self._values)}")
        return self._values[number]

    def __iter__(self) -> Iterator[OrtValue]:
        return iter(self._values)

    def _replace(self, values: Iterable[OrtValue]) -> None:
        self._values[:] = values

    def __repr__(self) -> str:
        return f"<OrtValueVector of {self._values}>"


def address(buffer_ptr: object) -> int:
    """Check an argument that is the address of memory."""
    return checks.integer("the address buffer_ptr", buffer_ptr, 0, 2**64 - 1)
