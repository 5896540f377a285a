"""Facts about a shared library that the dynamic loader uses, read without loading the library.

A damaged file gives an `ElfError` and nothing else. The file is read with `pread` rather than mapped, because a mapped
file that shrinks meanwhile would kill the process with SIGBUS.
"""

from __future__ import annotations

import os
import platform
import stat
import struct
from dataclasses import dataclass
from io import FileIO
from itertools import takewhile
from pathlib import Path

# Identity, type, processor; then the place, the entries' size and the number of the program headers.
_HEADER = struct.Struct("<16sHH12xQ14xHH6x")
# Type, offset in the file, address in memory, size in the file.
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")
_ENTRY = struct.Struct("<qQ")

_PT_LOAD = 1
_PT_DYNAMIC = 2
_DT_NULL = 0
_DT_NEEDED = 1
_DT_STRTAB = 5
_DT_SONAME = 14
_ET_DYN = 3

_MACHINES = {"x86_64": 62, "aarch64": 183}

_MAX_ENTRIES = 4096  # real libraries have about forty
_MAX_NAME = 1024


class ElfError(ValueError):
    """The file is no readable 64-bit little-endian ELF shared library."""


@dataclass(frozen=True)
class SharedLibrary:
    """The facts in a shared library's header.

    Attributes:
        soname: its DT_SONAME, or None where it has none.
        needed: its DT_NEEDED entries, in the file's order.
        machine: ELF's number for the processor (62 = x86-64, 183 = AArch64).
    """

    soname: str | None
    needed: tuple[str, ...]
    machine: int

    @property
    def is_native(self) -> bool:
        """Whether this machine's processor can run it (True where the processor is not known here)."""
        return _MACHINES.get(platform.machine(), self.machine) == self.machine


def read_shared_library(path: Path) -> SharedLibrary:
    """Read a shared library's name, its dependencies and its processor.

    Raises:
        ElfError: the file cannot be opened or read, or is no 64-bit little-endian ELF shared library.
    """
    try:
        with open(path, "rb", buffering=0, opener=_open_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ElfError("is not a regular file")
            return _read(file)
    except ElfError:
        raise
    except (OSError, ValueError) as error:
        raise ElfError(f"cannot be opened or read: {getattr(error, 'strerror', None) or error}") from error


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO in the library's place must not hang the caller


def _read(file: FileIO) -> SharedLibrary:
    header = _pread(file, _HEADER.size, 0)
    if header[:4] != b"\x7fELF":
        raise ElfError("is not an ELF file")
    if header[4:6] != b"\x02\x01":
        raise ElfError("is not a 64-bit little-endian ELF file")
    if len(header) < _HEADER.size:
        raise ElfError("is damaged or truncated: its header is incomplete")
    _, kind, machine, table, segment_size, segment_count = _HEADER.unpack(header)
    if kind != _ET_DYN:
        raise ElfError("is not a shared library")
    content = _pread(file, _SEGMENT.size * segment_count, table)
    if segment_size != _SEGMENT.size or len(content) < _SEGMENT.size * segment_count:
        raise ElfError("is damaged or truncated: its program headers make no sense")
    segments = list(_SEGMENT.iter_unpack(content))
    entries = _dynamic_entries(file, segments)
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), None)
    if strings is None:
        raise ElfError("is damaged: it has no table of names")
    base = next(
        (
            offset + strings - start
            for kind, offset, start, size in segments
            if kind == _PT_LOAD and start <= strings < start + size
        ),
        None,
    )
    if base is None:
        raise ElfError("is damaged: its table of names lies in no segment")
    soname = next((_name(file, base + value) for tag, value in entries if tag == _DT_SONAME), None)
    needed = tuple(_name(file, base + value) for tag, value in entries if tag == _DT_NEEDED)
    return SharedLibrary(soname, needed, machine)


def _dynamic_entries(file: FileIO, segments: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    for kind, offset, _, size in segments:
        if kind == _PT_DYNAMIC:
            wanted = min(size // _ENTRY.size, _MAX_ENTRIES) * _ENTRY.size
            content = _pread(file, wanted, offset)
            if len(content) < wanted:
                raise ElfError("is damaged or truncated: its dynamic section lies beyond its end")
            return list(takewhile(lambda entry: entry[0] != _DT_NULL, _ENTRY.iter_unpack(content)))
    raise ElfError("is damaged: it has no dynamic section")


def _name(file: FileIO, offset: int) -> str:
    name, end, _ = _pread(file, _MAX_NAME, offset).partition(b"\0")
    if not end:
        raise ElfError("is damaged: a name has no end")
    return name.decode("utf-8", "backslashreplace")


def _pread(file: FileIO, most: int, offset: int) -> bytes:
    try:
        return os.pread(file.fileno(), most, offset)
    except OverflowError:  # such an offset lies beyond the end of any file
        return b""
