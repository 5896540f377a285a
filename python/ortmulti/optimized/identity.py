"""Which bytes a model consists of: its graph by content, its large files by identity."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from ortmulti import _core
from ortmulti.errors import InvalidProtobuf, NoSuchFile, NotOptimizable

_INLINE_WEIGHT = 1024
"""Bytes from which on a tensor inside the model file counts as a weight and is not hashed with the graph."""


class FileIdentity(NamedTuple):
    """What tells one state of a file from another without reading it."""

    path: str
    size: int
    inode: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str) -> Self:
        """The file's identity now.

        Raises:
            NoSuchFile: There is none.
        """
        try:
            status = Path(path).stat()
        except OSError as error:
            raise NoSuchFile(f"the file '{path}' cannot be read: {error.strerror}") from error
        return cls(str(Path(path).resolve()), status.st_size, status.st_ino, status.st_mtime_ns)

    def is_current(self) -> bool:
        """Whether the file is still there and the same."""
        try:
            return FileIdentity.of(self.path) == self
        except NoSuchFile:
            return False


@dataclass(frozen=True)
class ModelContent:
    """What a model consists of.

    Attributes:
        graph: Digest of the model's bytes; those of large tensors inside a model file are left out.
        has_weights: Whether such bytes were left out, so that the model file's identity belongs to the content.
        model: The model file; None for a model in memory.
        locations: The files of external data as the model names them, sorted.
        data: The files themselves.
    """

    graph: str
    has_weights: bool
    model: FileIdentity | None
    locations: tuple[str, ...]
    data: tuple[FileIdentity, ...]

    @property
    def sources(self) -> tuple[FileIdentity, ...]:
        """All files of the model: its own, then those of external data."""
        return (self.model, *self.data) if self.model else self.data


def read_content(model: str | bytes | bytearray | memoryview, data_folder: str | None) -> ModelContent:
    """What ``model`` consists of.

    Args:
        model: Path, or bytes.
        data_folder: Where the external data of a model in memory lies.

    Raises:
        NotOptimizable: It is no ONNX protobuf file, or has external data that no folder is known for.
        NoSuchFile: A file is missing.
    """
    if isinstance(model, str):
        identity = FileIdentity.of(model)
        with Path(model).open("rb") as file:
            try:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise NotOptimizable(f"the model file '{model}' cannot be mapped: {error}") from error
            with mapping, memoryview(mapping) as view:
                graph, has_weights, locations = _read_graph(view, in_file=True)
        folders = list(dict.fromkeys([Path(model).parent, Path(identity.path).parent]))
    else:
        identity, folders = None, [] if data_folder is None else [Path(data_folder)]
        with memoryview(model) as view:
            # Without a file there is no identity that could stand for the tensors inside.
            graph, has_weights, locations = _read_graph(view, in_file=False)
    if locations and not folders:
        raise NotOptimizable("the model is in memory and has external data, and no folder is named for it")
    data = tuple(_find(location, folders) for location in locations)
    return ModelContent(graph, has_weights, identity, locations, data)


def _find(location: str, folders: Sequence[Path]) -> FileIdentity:
    """The first of these files that there is; a model may be a symbolic link into the folder of its data."""
    path = next((folder / location for folder in folders if (folder / location).exists()), folders[0] / location)
    return FileIdentity.of(str(path))


def _read_graph(model: memoryview, *, in_file: bool) -> tuple[str, bool, tuple[str, ...]]:
    index = _index(model)
    skipped = _inline_weights(index.initializers) if in_file else []
    digest = hashlib.blake2b(digest_size=16)
    for begin, end in _gaps(skipped, len(model)):
        digest.update(model[begin:end])
    return digest.hexdigest(), bool(skipped), tuple(sorted(map(os.fsdecode, index.external_locations)))


def _index(model: memoryview) -> _core.ModelIndex:
    try:
        return _core.index_model(model)
    except InvalidProtobuf as error:
        raise NotOptimizable(f"the model is not an ONNX protobuf file: {error}") from error


def _inline_weights(initializers: Sequence[_core.Initializer]) -> list[tuple[int, int]]:
    return sorted(
        (tensor.offset, tensor.offset + tensor.length)
        for tensor in initializers
        if tensor.storage == "inline" and tensor.length >= _INLINE_WEIGHT
    )


def _gaps(skipped: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """The parts of ``size`` bytes outside of ``skipped``. The tensors' lengths lie there, so that equal parts of two
    models are at equal places in them."""
    begin = 0
    for start, end in skipped:
        yield begin, start
        begin = end
    yield begin, size
