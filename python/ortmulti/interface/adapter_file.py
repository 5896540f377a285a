"""ONNX Runtime's file format for LoRA adapters: a FlatBuffers buffer with the identifier ``TORT``.

The table ``Adapter`` has format_version, adapter_version, model_version: int; parameters: [Parameter]. The table
``Parameter`` has name: string; dims: [int64]; data_type: int (ONNX's numbers); raw_data: [ubyte], aligned to 8 bytes.
Every field of a file is checked before it is used, so any bytes give an adapter or an error.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ortmulti import _core
from ortmulti.errors import InvalidArgument

FORMAT_VERSION = 1
IDENTIFIER = b"TORT"

# The types that ONNX Runtime takes in adapters, by ONNX's numbers: the bytes of an element.
ELEMENT_BYTES = {
    kind.onnx: kind.bits // 8
    for kind in _core.element_types.values()
    if kind.over_memory and kind.bits >= 8 and kind.dtype != "bool"
}

MAX_BYTES = 2**31 - 1
"""Of a FlatBuffers buffer."""

_MAX_RANK = 32  # of an array, with every release of NumPy

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Tensor:
    """A parameter: ONNX's number of its type, its dimensions and its elements' bytes, little-endian."""

    data_type: int
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True)
class Adapter:
    adapter_version: int = 0
    model_version: int = 0
    parameters: Mapping[str, Tensor] = field(default_factory=dict)


# --- Reading ----------------------------------------------------------------------------------------------------------


class _Reader:
    """A buffer whose every read is checked. Fields of a table have their numbers in the schema."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self._view = data.data
        self._unread = len(data)

    def read(self, code: str, position: int) -> int:
        size = struct.calcsize(code)
        if not 0 <= position <= len(self.data) - size:
            raise InvalidArgument(f"it ends at byte {len(self.data)}, but refers to byte {position}")
        return int(struct.unpack_from(code, self._view, position)[0])

    def target(self, position: int) -> int:
        """Return the target of the offset at this position."""
        return position + self.read("<I", position)

    def vector(self, position: int, element_bytes: int) -> tuple[int, int]:
        """Return the position and the number of a vector's elements."""
        count = self.read("<I", position)
        if count * element_bytes > len(self.data) - position - 4:
            raise InvalidArgument(f"it ends before the {count} elements of the vector at byte {position}")
        # A small file whose vectors overlap could otherwise name gigabytes of them.
        self._unread -= count * element_bytes
        if self._unread < 0:
            raise InvalidArgument(
                f"its vectors overlap: they are together longer than the file of {len(self.data)} bytes"
            )
        return position + 4, count

    def field(self, table: int, number: int) -> int | None:
        """Return the position of a field; None where the table does not have it."""
        entries = table - self.read("<i", table)
        entries_bytes, table_bytes = self.read("<H", entries), self.read("<H", entries + 2)
        if entries_bytes < 4 or entries_bytes % 2 or table_bytes < 4:
            raise InvalidArgument(f"the table at byte {table} is not one")
        entry = 4 + 2 * number
        offset = self.read("<H", entries + entry) if entry < entries_bytes else 0
        if offset and not 4 <= offset <= table_bytes - 4:
            raise InvalidArgument(f"field {number} of the table at byte {table} lies outside it")
        return table + offset if offset else None

    def integer(self, table: int, number: int) -> int:
        position = self.field(table, number)
        return 0 if position is None else self.read("<i", position)

    def reference(self, table: int, number: int) -> int | None:
        """Return the target of the offset in a field."""
        position = self.field(table, number)
        return None if position is None else self.target(position)


def parse(data: Bytes) -> Adapter:
    """Return the adapter in a file's bytes; its tensors lie in them.

    Raises:
        InvalidArgument: The bytes are no adapter, damaged, or have another version of the format.
    """
    if len(data) < 8 or data[4:8].tobytes() != IDENTIFIER:
        raise InvalidArgument("it is no ONNX Runtime adapter: its identifier is missing")
    reader = _Reader(data)
    adapter = reader.target(0)
    version = reader.integer(adapter, 0)
    if version != FORMAT_VERSION:
        raise InvalidArgument(f"it is of version {version} of the format, and only {FORMAT_VERSION} is known")
    parameters: dict[str, Tensor] = {}
    if (vector := reader.reference(adapter, 3)) is not None:
        start, count = reader.vector(vector, 4)
        for position in range(start, start + 4 * count, 4):
            name, tensor = _parameter(reader, reader.target(position))
            if name in parameters:
                raise InvalidArgument(f"it has two parameters of the name {name!r}")
            parameters[name] = tensor
    return Adapter(reader.integer(adapter, 1), reader.integer(adapter, 2), parameters)


def _parameter(reader: _Reader, parameter: int) -> tuple[str, Tensor]:
    text, dims, raw = (reader.reference(parameter, number) for number in (0, 1, 3))
    if text is None:
        raise InvalidArgument("it has a parameter without a name")
    start, count = reader.vector(text, 1)
    try:
        name = reader.data[start : start + count].tobytes().decode()
    except UnicodeDecodeError:
        raise InvalidArgument("it has a parameter whose name is not UTF-8") from None
    shape: tuple[int, ...] = ()
    if dims is not None:
        start, count = reader.vector(dims, 8)
        _check_rank(name, count)
        shape = struct.unpack_from(f"<{count}q", reader.data.data, start)
    start, count = (0, 0) if raw is None else reader.vector(raw, 1)
    tensor = Tensor(reader.integer(parameter, 2), shape, reader.data[start : start + count])
    check_parameter(name, tensor.data_type, shape)
    expected = math.prod(shape) * ELEMENT_BYTES[tensor.data_type]
    if count != expected:
        raise InvalidArgument(f"parameter {name!r} of shape {list(shape)} has {count} bytes and not {expected}")
    return name, tensor


def check_parameter(name: str, data_type: int, shape: tuple[int, ...]) -> None:
    """Raise InvalidArgument for a parameter that ONNX Runtime does not take in an adapter."""
    if not name:
        raise InvalidArgument("a parameter needs a name")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"the name {name!r} is no text: half a surrogate pair has no bytes") from None
    if data_type not in ELEMENT_BYTES:
        raise InvalidArgument(
            f"parameter {name!r} has elements of ONNX's type {data_type}, which ONNX Runtime does not take in adapters"
        )
    _check_rank(name, len(shape))
    if min(shape) < 0:
        raise InvalidArgument(f"parameter {name!r} has the dimensions {list(shape)}, none may be below 0")


def _check_rank(name: str, rank: int) -> None:
    if not 1 <= rank <= _MAX_RANK:
        raise InvalidArgument(f"parameter {name!r} has {rank} dimensions, expected 1 to {_MAX_RANK}")


# --- Writing ----------------------------------------------------------------------------------------------------------

# A table's soffset to its entries, which lie right before it, and then its fields of 4 bytes each; the entries are the
# sizes of both and the fields' places.
_ENTRIES = struct.pack("<6H", 12, 20, 4, 8, 12, 16)
_TABLE_BYTES = len(_ENTRIES) + 20


def chunks(adapter: Adapter) -> Iterator[bytes | memoryview]:
    """Yield the bytes of an adapter's file, part by part.

    Raises:
        InvalidArgument: Before the first part: the file would be larger than the format allows.
    """
    names = {name: name.encode() for name in adapter.parameters}
    heads: list[bytes] = []
    vector = 8 + _TABLE_BYTES
    position = vector + 4 + 4 * len(names)
    offsets = []
    for index, (name, tensor) in enumerate(adapter.parameters.items()):
        head = _head(position, names[name], tensor)
        offsets.append(position + len(_ENTRIES) - (vector + 4 + 4 * index))
        heads.append(head)
        position += len(head) + len(tensor.data) + _padding(len(tensor.data), 4)
    if position > MAX_BYTES:
        raise InvalidArgument(f"an adapter's file has at most {MAX_BYTES} bytes, and this one would have {position}")
    yield struct.pack("<I4s", 8 + len(_ENTRIES), IDENTIFIER)
    yield _ENTRIES
    versions = FORMAT_VERSION, adapter.adapter_version, adapter.model_version
    yield struct.pack("<iiiiI", len(_ENTRIES), *versions, 4)
    yield struct.pack(f"<I{len(offsets)}I", len(offsets), *offsets)
    for head, tensor in zip(heads, adapter.parameters.values(), strict=True):
        yield head
        yield tensor.data.data
        yield bytes(_padding(len(tensor.data), 4))


def _head(position: int, name: bytes, tensor: Tensor) -> bytes:
    """Return a parameter at this position up to its data: entries, table, name, dimensions, the number of bytes."""
    table = len(_ENTRIES)
    text = _TABLE_BYTES
    head = struct.pack("<I", len(name)) + name + b"\0"
    dims = text + len(head)
    dims += _padding(position + dims + 4, 8)
    raw = dims + 4 + 8 * len(tensor.shape)
    raw += _padding(position + raw + 4, 8)
    fields = struct.pack(
        "<iIIiI", len(_ENTRIES), text - table - 4, dims - table - 8, tensor.data_type, raw - table - 16
    )
    result = bytearray(_ENTRIES + fields + head)
    result += bytes(dims - len(result))
    result += struct.pack(f"<I{len(tensor.shape)}q", len(tensor.shape), *tensor.shape)
    result += bytes(raw - len(result))
    result += struct.pack("<I", len(tensor.data))
    return bytes(result)


def _padding(size: int, multiple: int) -> int:
    return -size % multiple
