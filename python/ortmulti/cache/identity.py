"""Which bytes a model consists of: its graph by content, its large files by identity."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from ortmulti import _core
from ortmulti.errors import Fail, InvalidProtobuf, NoSuchFile, NotOptimizable, WeightsError

_INLINE_WEIGHT = 1024
"""Bytes from which on a tensor inside the model file counts as a weight and is not hashed with the graph."""
_BLOCK = 1 << 20
"""Bytes that are read at once."""


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
            NoSuchFile: There is no regular file.
        """
        return cls(*_core.identify_file(path))

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
        locations: The files of external data as the model names them.
        data: The files themselves, in the same order.
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
        NotOptimizable: It is no ONNX protobuf file, or has external data outside of its folder or without a folder.
        NoSuchFile: A file is missing.
    """
    if isinstance(model, str):
        identity = FileIdentity.of(model)
        if identity.size == 0:
            raise NotOptimizable(f"the model file '{model}' is empty")
        graph, has_weights, index = _read_graph(identity)
        folder: str | None = str(Path(model).parent)
    else:
        identity, folder = None, data_folder
        with memoryview(model) as view:
            # Without a file there is no identity that could stand for the tensors inside.
            graph, has_weights, index = _read_graph(view)
    locations = tuple(map(os.fsdecode, index.external_locations))
    if locations and folder is None:
        raise NotOptimizable("the model is in memory and has external data, and no folder is named for it")
    try:
        found = _core.external_files(index, folder or "", model if isinstance(model, str) else "")
    except Fail as error:
        raise NotOptimizable(str(error)) from error
    data = tuple(FileIdentity(*file) for file in found)
    return ModelContent(graph, has_weights, identity, locations, data)


def _read_graph(model: FileIdentity | memoryview) -> tuple[str, bool, _core.ModelIndex]:
    try:
        index = index_model(model)
        skipped = inline_weights(index.initializers) if isinstance(model, FileIdentity) else []
        digest = digest_without(model, skipped)
    except InvalidProtobuf as error:
        raise NotOptimizable(f"the model is not an ONNX protobuf file: {error}") from error
    except (Fail, WeightsError) as error:
        raise NotOptimizable(f"the model cannot be read: {error}") from error
    return digest, bool(skipped), index


def index_model(model: FileIdentity | memoryview) -> _core.ModelIndex:
    """Index a model file or a model in memory.

    Raises:
        InvalidProtobuf: It is no ONNX model.
        WeightsError: The file is not the one that was identified, or was changed meanwhile.
    """
    return _core.index_model_file(model) if isinstance(model, FileIdentity) else _core.index_model(model)


def digest_without(model: FileIdentity | memoryview, skipped: Sequence[tuple[int, int]]) -> str:
    """Digest a model's bytes outside of ``skipped``. A file is never mapped: a mapping of a file that shrinks would end
    the process.

    Raises:
        WeightsError: The file cannot be read, is not the one that was identified, or was changed meanwhile.
    """
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(model, memoryview):
        for begin, end in _gaps(skipped, len(model)):
            digest.update(model[begin:end])
        return digest.hexdigest()
    try:
        with Path(model.path).open("rb", buffering=0) as file:
            for begin, end in _gaps(skipped, model.size):
                while begin < end and (block := os.pread(file.fileno(), min(end - begin, _BLOCK), begin)):
                    digest.update(block)
                    begin += len(block)
            found = os.fstat(file.fileno())
    except OSError as error:
        raise WeightsError(f"the model '{model.path}' cannot be read: {error.strerror}") from error
    if (found.st_size, found.st_ino, found.st_mtime_ns) != model[1:]:
        raise WeightsError(f"'{model.path}' was changed or replaced while it was read; try again")
    return digest.hexdigest()


def inline_weights(initializers: Sequence[_core.Initializer]) -> list[tuple[int, int]]:
    """The places of the weights inside a model file."""
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
