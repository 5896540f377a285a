"""Lists of weights in a file, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from ortmulti import _core

Fields: TypeAlias = tuple[str, int, Sequence[int], int, int, int]
"""Name, ONNX's type, shape, number of the file, offset and length, as `_core.Weight` takes them."""


def fields(weight: _core.Weight) -> Fields:
    return weight.name, weight.data_type, weight.shape, weight.source, weight.offset, weight.length


def weight_list(path: Path | str, weights: Iterable[Fields]) -> _core.WeightList:
    """Weights that all lie in this file."""
    return _core.WeightList([_core.file_source(str(path))], [_core.Weight(*weight) for weight in weights])


def bytes_of(weights: _core.WeightList) -> dict[str, bytes]:
    """Every weight's bytes as the list says where they lie, in files that have not changed."""
    found = {}
    for weight in weights.weights:
        source = weights.sources[weight.source]
        source.check()
        with Path(source.name).open("rb") as data:
            data.seek(weight.offset)
            found[weight.name] = data.read(weight.length)
    return found
