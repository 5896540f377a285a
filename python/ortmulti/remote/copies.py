"""Copies of remote files on this host's disk: in the cache, within its bounds."""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti._runtime import background, native
from ortmulti.cache.entries import Cache, StagedEntry
from ortmulti.cache.entry import MODEL, PLACEHOLDER, Entry
from ortmulti.cache.key import CacheKey
from ortmulti.errors import Error
from ortmulti.remote.file import RANGE, RemoteFile

_LOGGER = logging.getLogger("ortmulti")


def source_of(file: RemoteFile) -> _core.Source | KeptFile:
    """Return the source over the copy, if there is one, which is read once to compare its checksum. Otherwise one that
    makes a copy while it is read.
    """
    entry = Cache.default().find(_key(file), verify=True)
    return KeptFile(file) if entry is None else _over(file, entry)


def _key(file: RemoteFile) -> CacheKey:
    facts: dict[str, Any] = {"copy": file.identity, "compute_capability": None, "onnxruntime": []}
    return CacheKey(hashlib.blake2b(f"copy {file.identity}".encode(), digest_size=16).hexdigest(), facts, (), file.name)


class _Mapped(mmap.mmap):
    """The bytes of an entry, which stays in the cache meanwhile."""

    entry: Entry


def _over(file: RemoteFile, entry: Entry) -> _core.Source:
    with open(entry.model_path, "rb", opener=_core.open_nofollow) as opened:
        mapped = _Mapped(opened.fileno(), file.size, prot=mmap.PROT_READ)
    mapped.entry = entry
    return _core.memory_source(file.name, memoryview(mapped), identity=file.identity)


class KeptFile:
    """A remote file that writes each range to the disk as it comes. `complete` makes a copy of it.

    Attributes:
        name, identity, size, reads_at_once, range_bytes: As of `RemoteFile`.
    """

    reads_at_once = RemoteFile.reads_at_once
    range_bytes = RANGE

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.name = file.name
        self.identity = file.identity
        self.size = file.size
        self._lock = native.Lock()
        self._there: list[tuple[int, int]] = []  # ranges on the disk, in order and apart
        self._staged: StagedEntry | None = None
        cache = Cache.default()
        if file.size > cache.limit:
            cache.say_unused(f"{file.name} of {file.size} bytes is larger than the cache may be")
            return
        try:
            self._staged = cache.stage(_key(file))
            path = self._staged.folder / MODEL
            with open(path, "wb", opener=_core.open_nofollow) as made:
                made.truncate(file.size)
        except (OSError, Error) as error:
            self._give_up(error)

    def read_into(self, buffer: memoryview, offset: int) -> memoryview:
        """As `RemoteFile.read_into`."""
        body = self._file.read_into(buffer, offset)
        self._write(body, offset)
        return body

    def interrupt(self) -> None:
        """As `RemoteFile.interrupt`."""
        self._file.interrupt()

    def _write(self, body: memoryview, offset: int) -> None:
        staged = self._staged
        if staged is None:
            return
        try:
            _write_at(staged.folder / MODEL, body, offset)
        except OSError as error:
            self._give_up(error)
            return
        with self._lock:
            ranges = sorted([*self._there, (offset, offset + len(body))])
            self._there = ranges[:1]
            for begin, end in ranges[1:]:
                last_begin, last_end = self._there[-1]
                if begin <= last_end:
                    self._there[-1] = (last_begin, max(last_end, end))
                else:
                    self._there.append((begin, end))

    def complete(self) -> None:
        """Read what was not asked for, and publish the copy: in the background."""
        staged = self._staged
        if staged is not None:
            self._staged = None  # another read writes no more
            background.do(lambda poll: self._publish(staged, poll), "ortmulti-copy", staged.discard)

    def _publish(self, staged: StagedEntry, poll: Callable[[], object]) -> None:
        with staged:
            try:
                for begin, end in self._holes():
                    poll()
                    copy_range(self._file, staged.folder / MODEL, begin, end)
                Path(staged.folder / PLACEHOLDER).touch(mode=0o600)
                poll()
                staged.finish(_core.WeightList(), self.size)
                staged.publish().close()
            except (OSError, Error) as error:
                self._give_up(error)

    def _holes(self) -> list[tuple[int, int]]:
        edges = [0, *(edge for part in self._there for edge in part), self.size]
        return [part for hole in zip(edges[::2], edges[1::2], strict=True) for part in ranges(*hole)]

    def _give_up(self, error: object) -> None:
        staged, self._staged = self._staged, None
        if staged is not None:
            staged.discard()
        _LOGGER.warning("no copy of %s is kept: %s", self._file.name, error)

    def __del__(self) -> None:
        if (staged := getattr(self, "_staged", None)) is not None:
            staged.discard()


def ranges(begin: int, end: int) -> list[tuple[int, int]]:
    """Cut bytes of a file into ranges to be read."""
    return [(at, min(at + RANGE, end)) for at in range(begin, end, RANGE)]


def copy_range(file: RemoteFile, path: Path, begin: int, end: int) -> None:
    """Read a range and write it to its place in a file that exists.

    Raises:
        WeightsError: The bytes do not come, or the object was changed.
        OSError: They cannot be written.
    """
    _write_at(path, file.read_into(memoryview(bytearray(end - begin)), begin), begin)


def _write_at(path: Path, body: memoryview, offset: int) -> None:
    with open(path, "r+b", buffering=0, opener=_core.open_nofollow) as file:
        written = 0
        while written < len(body):
            written += os.pwrite(file.fileno(), body[written:], offset + written)
