"""A model whose graph and external data are in an object store."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ortmulti import _core
from ortmulti.errors import InvalidProtobuf
from ortmulti.remote.file import RANGE, RemoteFile, side_by_side
from ortmulti.remote.place import place_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from ortmulti.remote.copies import KeptFile

_UINT8 = 2
INLINE = "\n"
"""The name of the weights within the graph, which no file has."""


class Opened(NamedTuple):
    """What `Model` is made of.

    Attributes:
        name: The model's URL without secrets.
        graph: Its bytes, without large weights.
        weights: The source of each file of external data, by its name in the graph.
        kept: Those that make a copy while they are read.
        copied: Whether a copy takes the place of an object.
    """

    name: str
    graph: bytes | memoryview
    weights: dict[str, Any]
    kept: list[KeptFile]
    copied: bool


def open_model(url: str, store: ObjectStore | None, *, keep: bool, large: int) -> Opened:
    """Read the graph of a model, and find its external data beside it.

    Args:
        url: Where the model is.
        store: A store; ``url`` is a path there.
        keep: Whether copies are used and made.
        large: Bytes from which on a weight within the graph is put outside of it.

    Raises:
        NoSuchFile, WeightsError, OutOfMemory, RuntimeException: As of `RemoteFile`.
        InvalidArgument: As of `RemoteFile`, or external data is not below the model's folder.
        InvalidProtobuf: The graph is not an ONNX model.
        LibraryError: The package obstore is missing.
    """
    place = place_of(url, store)
    kept: list[KeptFile] = []
    copied: list[str] = []

    def source_of(file: RemoteFile) -> Any:
        if not keep:
            return file
        from ortmulti.remote import copies

        source = copies.source_of(file)
        if isinstance(source, copies.KeptFile):
            kept.append(source)
        else:
            copied.append(file.name)
        return source

    [file] = side_by_side([partial(RemoteFile.at, place, 1 if keep else RANGE)], place.link)
    model = _in_memory(source_of(file), file)
    try:
        graph = _core.put_weights_at(model, INLINE, large) or model.read(0, model.size).data
        locations = [os.fsdecode(location) for location in _core.index_model(graph).external_locations]
    except InvalidProtobuf as error:
        if url.partition("?")[0].endswith(".ort"):  # in ONNX Runtime's own format
            return Opened(file.name, model.read(0, model.size).data, {}, kept, bool(copied))
        raise InvalidProtobuf(f"'{file.name}' is not an ONNX model: {error}") from None
    outside = [location for location in locations if location != INLINE]
    first = 1 if keep or len(outside) > 1 else RANGE
    found = side_by_side([partial(RemoteFile.at, each, first) for each in place.beside(outside)], place.link)
    weights = {location: source_of(each) for location, each in zip(outside, found, strict=True)}
    if INLINE in locations:
        weights[INLINE] = model
    return Opened(file.name, graph, weights, kept, bool(copied))


def _in_memory(source: Any, file: RemoteFile) -> _core.Source:
    """Return the whole file in memory, with the identity that it has in the store."""
    if isinstance(source, _core.Source):
        return source
    if source is file and (whole := file.whole) is not None:
        return _core.memory_source(file.name, whole, identity=file.identity)
    all_of_it = _core.Weight("graph", _UINT8, [file.size], 0, 0, file.size)
    [read] = _core.WeightList([source], [all_of_it]).read().sources
    return read.identified(file.name, file.identity)
