"""Weights that are loaded once, as onnxruntime's own values, which its sessions use in place."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ortmulti import _core
from ortmulti._runtime.regular_file import open_regular
from ortmulti.errors import WeightsError
from ortmulti.values import onnxruntime_values

# TensorProto.DataType
_BOOL = 9
_INT4 = (21, 22)  # two elements a byte, which NumPy's shapes cannot say
_FLOAT8 = (17, 18, 19, 20)
SMALL_TYPES = (*_INT4, *_FLOAT8)


class NotShared(Exception):  # noqa: N818  (not a failure)
    """These sessions load their weights by themselves; the message has the reason."""


@dataclass(frozen=True)
class Source:
    """A model without open graph optimizations, and the weights that its sessions may share.

    Attributes:
        path: The model.
        weights: These weights and their files.
        owner: An object that must live as long as the sessions.
    """

    path: str
    weights: _core.WeightList
    owner: object = None


class Weights(Protocol):
    """One device's weights as onnxruntime's values."""

    def add_to(self, options: Any) -> None:
        """Give the weights to the options of a new session. They must live as long as the session."""

    def created(self) -> None:
        """Called when all sessions exist."""


class MappedWeights:
    """The weights for sessions on the CPU, in the mappings of their files."""

    def __init__(self, ort: Any, source: Source) -> None:
        self._owner = source.owner
        self._maps = maps = [_map(*file) for file in source.weights.files]
        make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        self._values = {
            name: make(_view(maps[file], data_type, shape, offset, length), data_type)
            for name, data_type, shape, file, offset, length in source.weights.weights
        }

    def add_to(self, options: Any) -> None:
        for name, value in self._values.items():
            options.add_initializer(name, value)

    def created(self) -> None:
        # Pages that were read once for a new layout need not stay in this process's memory. Others come back unread.
        for mapping in self._maps:
            mapping.madvise(mmap.MADV_DONTNEED)


class GpuWeights:
    """The weights for sessions on a GPU, in a store's memory, which is freed after the last value over it.

    The store's ``dlpack(i, ...)`` is a DLPack capsule of its weight ``i``.
    """

    def __init__(self, ort: Any, source: Source, store: Any) -> None:
        self._owner = source.owner
        make = ort.capi._pybind_state.OrtValue.from_dlpack
        by_hand = onnxruntime_values.bool_is_uint8(ort.__version__)  # then the type bool is passed explicitly
        self._values = {
            name: ort.OrtValue(make(store.dlpack(index, by_hand), *((data_type == _BOOL,) if by_hand else ())))
            for index, (name, data_type, *_) in enumerate(source.weights.weights)
        }

    def add_to(self, options: Any) -> None:
        for name, value in self._values.items():
            options.add_initializer(name, value)

    def created(self) -> None:
        pass


def check_unchanged(weights: _core.WeightList) -> None:
    """Check that the files of the weights and of their graph have not changed.

    Raises:
        WeightsError: A file has changed.
    """
    for path, size, inode, mtime_ns in weights.files:
        try:
            found = Path(path).stat()
        except OSError as error:
            raise WeightsError(f"cannot read the weights in '{path}': {error}") from error
        _check_same(path, found, size, inode, mtime_ns)


def _check_same(path: str, found: os.stat_result, size: int, inode: int, mtime_ns: int) -> None:
    if (found.st_size, found.st_ino, found.st_mtime_ns) != (size, inode, mtime_ns):
        raise WeightsError(f"'{path}' was changed or replaced while it was loaded; load again")


def _map(path: str, size: int, inode: int, mtime_ns: int) -> mmap.mmap:
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            mapping = mmap.mmap(file.fileno(), found.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise WeightsError(f"cannot read the weights in '{path}': {error}") from error
    _check_same(path, found, size, inode, mtime_ns)
    return mapping


def _view(mapping: mmap.mmap, data_type: int, shape: Sequence[int], offset: int, length: int) -> Any:
    """Return the weight's bytes as an array of its shape. onnxruntime knows the elements' type."""
    count = int(np.prod(shape, dtype=np.int64))
    width = length // count
    if width * count != length or data_type in _INT4:
        raise NotShared(f"onnxruntime's Python interface has no values of type {data_type} over given memory")
    array = np.frombuffer(mapping, dtype=f"u{width}", count=count, offset=offset).reshape(shape)
    # Kernels may rely on the alignment of an element.
    return array if offset % width == 0 else array.copy()
