"""Where the dynamic loader of this process would find a library, and which libraries it has already loaded."""

from __future__ import annotations

import os
import platform
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

_CACHE = Path("/etc/ld.so.cache")
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("<20sIIB3xI12x")
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_MAX_CACHE_BYTES = 64 << 20


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> dict[str, Path]:
    """The shared libraries that are mapped into this process.

    Args:
        maps: the process's memory map, as Linux prints it.

    Returns:
        File name -> path, for every mapped file that has ``.so`` in its name and still exists.
    """
    try:
        text = maps.read_text(errors="surrogateescape")
    except OSError:
        return {}
    found: dict[str, Path] = {}
    for match in re.finditer(r"(?m)^\S+ \S+ \S+ \S+ \d+ +(/.*\.so[.\d]*)$", text):
        path = match.group(1)
        found.setdefault(path.rsplit("/", 1)[1], Path(path))
    return found


def read_cache(data: bytes) -> Iterator[tuple[str, str]]:
    """The entries of the loader's cache (``/etc/ld.so.cache``).

    Args:
        data: the file's bytes. Anything that is no such cache has no entries.

    Yields:
        (library name, path), in the cache's order. Entries whose bytes make no sense are left out.
    """
    # Older systems put the format that is read here behind an older one; its offsets count from its own start.
    start = data.find(_CACHE_MAGIC)
    if start < 0:
        return
    data = data[start:]
    if len(data) < _CACHE_HEADER.size:
        return
    count = _CACHE_HEADER.unpack_from(data)[1]
    room = (len(data) - _CACHE_HEADER.size) // _CACHE_ENTRY.size
    for index in range(min(count, room)):
        _, key, value, _, _ = _CACHE_ENTRY.unpack_from(data, _CACHE_HEADER.size + index * _CACHE_ENTRY.size)
        key_end, value_end = data.find(b"\0", key), data.find(b"\0", value)
        if key_end > key and value_end > value:
            yield os.fsdecode(data[key:key_end]), os.fsdecode(data[value:value_end])


class LoaderSearch:
    """The loader's own search: ``LD_LIBRARY_PATH``, its cache, its default folders, in this order.

    Args:
        environ: the environment to take ``LD_LIBRARY_PATH`` from.
        cache: the loader's cache.
        folders: the default folders; None for this machine's.
    """

    def __init__(
        self, environ: Mapping[str, str] = os.environ, cache: Path = _CACHE, folders: list[Path] | None = None
    ) -> None:
        if folders is None:
            triplet = f"{platform.machine()}-linux-gnu"
            folders = [Path(p) for p in (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64")]
        self._first = [Path(p) for p in re.split("[:;]", environ.get("LD_LIBRARY_PATH", "")) if p]
        self._last = folders
        self._cache = cache
        self._cached: dict[str, list[Path]] | None = None

    def find(self, name: str) -> Iterator[Path]:
        """The files that the loader would consider for a library name, best first.

        Args:
            name: the library's name, for example ``libcublas.so.12``.

        Yields:
            Existing files.
        """
        for path in (
            *(folder / name for folder in self._first),
            *self._cache_entries().get(name, ()),
            *(folder / name for folder in self._last),
        ):
            if path.is_file():
                yield path

    def names(self, prefix: str) -> Iterator[Path]:
        """The files known to the loader whose names begin with a prefix: other versions of a library.

        Args:
            prefix: for example ``libcublas.so.``

        Yields:
            Existing files.
        """
        for folder in self._first:
            if folder.is_dir():
                yield from (path for path in sorted(folder.glob(f"{prefix}*")) if path.is_file())
        for name, paths in self._cache_entries().items():
            if name.startswith(prefix):
                yield from (path for path in paths if path.is_file())

    def _cache_entries(self) -> dict[str, list[Path]]:
        if self._cached is None:
            self._cached = {}
            try:
                with self._cache.open("rb") as file:
                    data = file.read(_MAX_CACHE_BYTES)
            except OSError:
                return self._cached
            for name, path in read_cache(data):
                self._cached.setdefault(name, []).append(Path(path))
        return self._cached
