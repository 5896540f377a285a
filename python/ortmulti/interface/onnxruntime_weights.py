"""Weights that are loaded once, as onnxruntime's own values, which its sessions use in place."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ortmulti import _core
from ortmulti._runtime.regular_file import open_regular
from ortmulti.errors import WeightsError
from ortmulti.values import onnxruntime_values

_TYPES = {kind.onnx: kind for kind in _core.element_types.values()}
_BOOL = _core.element_types["tensor(bool)"].onnx
SMALL_TYPES = {number for number, kind in _TYPES.items() if kind.is_of_ml_dtypes and kind.bits <= 8}


class NotShared(Exception):  # noqa: N818  (not a failure)
    """These sessions load their weights by themselves; the message has the reason."""


@dataclass(frozen=True)
class SharedModel:
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

    def __init__(self, ort: Any, shared: SharedModel) -> None:
        self._owner = shared.owner
        self._maps = maps = [_map(file) for file in shared.weights.sources]
        make = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        self._values = {
            weight.name: make(_view(maps[weight.source], weight), weight.data_type) for weight in shared.weights.weights
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

    def __init__(self, ort: Any, shared: SharedModel, store: Any) -> None:
        self._owner = shared.owner
        make = ort.capi._pybind_state.OrtValue.from_dlpack
        by_hand = onnxruntime_values.lacks_types(ort.__version__)  # then the type bool is passed explicitly
        self._values = {
            weight.name: ort.OrtValue(
                make(store.dlpack(index, by_hand), *((weight.data_type == _BOOL,) if by_hand else ()))
            )
            for index, weight in enumerate(shared.weights.weights)
        }

    def add_to(self, options: Any) -> None:
        for name, value in self._values.items():
            options.add_initializer(name, value)

    def created(self) -> None:
        pass


def _map(file: _core.Source) -> mmap.mmap:
    try:
        with open_regular(file.name) as opened:
            mapping = mmap.mmap(opened.fileno(), file.size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise WeightsError(f"cannot read the weights in '{file.name}': {error}") from error
    file.check()
    return mapping


def _view(mapping: mmap.mmap, weight: _core.Weight) -> Any:
    """Return the weight's bytes as an array of its shape. onnxruntime knows the elements' type."""
    count = int(np.prod(weight.shape, dtype=np.int64))
    width = weight.length // count
    if width * count != weight.length or _TYPES[weight.data_type].bits < 8:
        raise NotShared(f"onnxruntime's Python interface has no values of type {weight.data_type} over given memory")
    array = np.frombuffer(mapping, dtype=f"u{width}", count=count, offset=weight.offset).reshape(weight.shape)
    # Kernels may rely on the alignment of an element.
    return array if weight.offset % width == 0 else array.copy()
