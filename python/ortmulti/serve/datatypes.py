"""Tensors of the Open Inference Protocol as arrays, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmulti import _core, errors
from ortmulti.errors import InvalidArgument
from ortmulti.values.floats import is_floating

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Declared", "array_of_bytes", "array_of_numbers", "bytes_of_array", "checked_shape", "numbers_of_array"]

# More dimensions than NumPy's arrays have.
_MOST_DIMENSIONS = 64
_LENGTH = 4  # bytes before each element of BYTES


class Declared:
    """An input or output as the protocol names it.

    Attributes:
        name: Its name.
        datatype: The protocol's word for the type of its elements, such as ``"FP32"``; "" where it has none.
        dtype: That of its arrays.
        shape: Its dimensions, -1 for any size.
    """

    __slots__ = ("datatype", "dtype", "name", "shape")

    def __init__(self, value: _core.NodeArg) -> None:
        self.name = value.name
        kind = _core.element_types.get(value.type)
        self.datatype = "" if kind is None else kind.protocol
        self.dtype = value.dtype if self.datatype else None
        self.shape = [size if isinstance(size, int) else -1 for size in value.shape]

    @property
    def data_type(self) -> str:
        """Triton's word for the datatype in a model's configuration."""
        return "TYPE_" + ("STRING" if self.datatype == "BYTES" else self.datatype or "INVALID")

    def require_datatype(self) -> str:
        """Return the datatype, or raise errors.NotImplemented: the protocol has no word for it."""
        if not self.datatype:
            raise errors.NotImplemented(f"the protocol has no datatype for {self.name!r} of this model")
        return self.datatype


def checked_shape(declared: Declared, shape: Sequence[Any], model: str) -> int:
    """Check a shape that a client sent against the declared one, and return the number of its elements."""
    wanted = declared.shape
    fits = len(shape) == len(wanted) and len(shape) <= _MOST_DIMENSIONS
    for size, declared_size in zip(shape, wanted, strict=False):
        if type(size) is not int or not 0 <= size < 1 << 63 or (declared_size != -1 and size != declared_size):
            fits = False
    if not fits:
        found = ",".join(str(size)[:20] for size in shape[:_MOST_DIMENSIONS])
        raise InvalidArgument(
            f"unexpected shape for input '{declared.name}' for model '{model}'. Expected "
            f"[{','.join(map(str, wanted))}], got [{found}]{' (-1 is any size of 0 or more)' * (-1 in wanted)}"
        )
    return math.prod(shape)


def array_of_bytes(declared: Declared, data: bytes | memoryview, shape: Sequence[int], model: str) -> NDArray[Any]:
    """Make an array over binary data of the declared datatype, which are little-endian; strings are copied."""
    count = checked_shape(declared, shape, model)
    if declared.datatype == "BYTES":
        return _strings(declared, data, count).reshape(shape)
    assert declared.dtype is not None
    if len(data) != count * declared.dtype.itemsize:
        raise InvalidArgument(
            f"input byte size mismatch for input '{declared.name}' for model '{model}'. Expected "
            f"{count * declared.dtype.itemsize}, got {len(data)}"
        )
    if declared.datatype == "BOOL":  # a byte that is neither 0 nor 1 is undefined as a bool
        return np.frombuffer(data, np.uint8).astype(np.bool_).reshape(shape)
    array: NDArray[Any] = np.frombuffer(data, declared.dtype)
    aligned: NDArray[Any] = array if array.flags.aligned else array.copy()
    return aligned.reshape(shape)


def _strings(declared: Declared, data: bytes | memoryview, count: int) -> NDArray[Any]:
    texts: list[str] = []
    at, end = 0, len(data)
    while at + _LENGTH <= end and len(texts) < count:
        size = int.from_bytes(data[at : at + _LENGTH], "little")
        at += _LENGTH + size
        if at > end:
            break
        texts.append(_text(declared, data[at - size : at]))
    if at != end or len(texts) != count:
        raise InvalidArgument(
            f"the data of input '{declared.name}' are not {count} strings, each with its length in {_LENGTH} bytes"
        )
    strings = np.empty(count, object)
    strings[:] = texts
    return strings


def _text(declared: Declared, data: bytes | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"input '{declared.name}' has a string that is not UTF-8: {error}") from None


def array_of_numbers(declared: Declared, data: object, shape: Sequence[int], model: str) -> NDArray[Any]:
    """Make an array of JSON's numbers, strings or booleans, flat or nested, or of a message's repeated field."""
    count = checked_shape(declared, shape, model)
    flat = _flattened(data) if isinstance(data, list) else None
    if flat is None or len(flat) != count:
        raise InvalidArgument(
            f"input '{declared.name}' for model '{model}' has the shape [{','.join(map(str, shape))}], which is "
            f"{count} values, and its data are {'no list' if flat is None else len(flat)}"
        )
    if declared.datatype == "BYTES":
        strings = np.empty(count, object)
        strings[:] = [one if isinstance(one, str) else _text_of(declared, one) for one in flat]
        return strings.reshape(shape)
    assert declared.dtype is not None
    wanted = bool if declared.datatype == "BOOL" else (int, float) if is_floating(declared.dtype) else int
    if not all(isinstance(one, wanted) and (wanted is bool or not isinstance(one, bool)) for one in flat):
        raise InvalidArgument(
            f"the data of input '{declared.name}' for model '{model}' are not all {declared.datatype}"
        )
    try:
        with np.errstate(over="raise"):  # a number that the type has only as infinity
            return np.array(flat, declared.dtype).reshape(shape)
    except (FloatingPointError, OverflowError, ValueError) as error:
        raise InvalidArgument(f"the data of input '{declared.name}' are not {declared.datatype}: {error}") from None


def _text_of(declared: Declared, value: object) -> str:
    if not isinstance(value, bytes):
        raise InvalidArgument(f"the data of input '{declared.name}' are not all strings")
    return _text(declared, value)


def _flattened(data: list[Any]) -> list[Any]:
    for _ in range(_MOST_DIMENSIONS):
        if not data or not isinstance(data[0], list):
            break
        if not all(isinstance(each, list) for each in data):
            raise InvalidArgument("the data are nested unevenly")
        data = [value for each in data for value in each]
    return data


def bytes_of_array(array: NDArray[Any], datatype: str) -> bytes:
    """Return an output in the protocol's binary form."""
    if datatype != "BYTES":
        return array.tobytes()
    parts = []
    for text in array.ravel():
        data = text if isinstance(text, bytes) else str(text).encode()
        parts += [len(data).to_bytes(_LENGTH, "little"), data]
    return b"".join(parts)


def numbers_of_array(array: NDArray[Any], datatype: str) -> list[Any]:
    """Return an output as values for JSON, flat. NaN and infinity are as Python's `json` writes them."""
    if datatype == "BYTES":
        return [text.decode() if isinstance(text, bytes) else str(text) for text in array.ravel()]
    if array.dtype.kind == "V":  # the elements of ml_dtypes are no numbers of Python's
        array = array.astype(np.float32)
    values: list[Any] = array.ravel().tolist()
    return values
