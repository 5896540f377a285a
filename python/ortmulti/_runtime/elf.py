"""Facts about a shared library that the dynamic loader uses, read without loading the library.

The file may be damaged or hostile. Every offset is checked before it is followed, and the amount of reading is bounded.
So a bad file gives an `ElfError` and nothing else. The file is read with `pread` rather than mapped, because a mapped
file that shrinks meanwhile would kill the process with SIGBUS.
"""

from __future__ import annotations

import os
import platform
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")

_PT_LOAD = 1
_PT_DYNAMIC = 2
_DT_NULL = 0
_DT_NEEDED = 1
_DT_STRTAB = 5
_DT_SONAME = 14
_ET_DYN = 3

_MACHINES = {"x86_64": 62, "aarch64": 183}

# Real libraries have about a dozen segments and forty dynamic entries.
_MAX_SEGMENTS = 1024
_MAX_ENTRIES = 4096
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
    """Read the dynamic section of a shared library.

    Args:
        path: the file.

    Returns:
        Its name, its dependencies and its processor.

    Raises:
        ElfError: the file cannot be opened or read, or is no 64-bit little-endian ELF shared library.
    """
    try:
        # O_NONBLOCK: a FIFO in the library's place must not hang the caller.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ElfError(f"cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ElfError("is not a regular file")
        return _read(descriptor)
    except OSError as error:
        raise ElfError(f"cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _pread(descriptor: int, size: int, offset: int, what: str) -> bytes:
    if offset >= 1 << 62:
        raise ElfError(f"is damaged: {what} lies beyond its end")
    data = os.pread(descriptor, size, offset)
    if len(data) < size:
        raise ElfError(f"is damaged or truncated: {what} lies beyond its end")
    return data


def _read(descriptor: int) -> SharedLibrary:
    header = os.pread(descriptor, _HEADER.size, 0)
    if header[:4] != b"\x7fELF":
        raise ElfError("is not an ELF file")
    if header[4:6] != b"\x02\x01":
        raise ElfError("is not a 64-bit little-endian ELF file")
    if len(header) < _HEADER.size:
        raise ElfError("is damaged or truncated: its header is incomplete")
    _, kind, machine, _, _, table, _, _, _, segment_size, segment_count, _, _, _ = _HEADER.unpack(header)
    if kind != _ET_DYN:
        raise ElfError("is not a shared library")
    if segment_size != _SEGMENT.size or segment_count > _MAX_SEGMENTS:
        raise ElfError("is damaged: its program headers make no sense")
    segments = list(
        _SEGMENT.iter_unpack(_pread(descriptor, segment_size * segment_count, table, "its program headers"))
    )

    entries = _dynamic_entries(descriptor, segments)
    strings = next((value for tag, value in entries if tag == _DT_STRTAB), None)
    if strings is None:
        raise ElfError("is damaged: it has no table of names")
    base = _file_offset(segments, strings)

    soname = next((_name(descriptor, base + value) for tag, value in entries if tag == _DT_SONAME), None)
    needed = tuple(_name(descriptor, base + value) for tag, value in entries if tag == _DT_NEEDED)
    return SharedLibrary(soname, needed, machine)


def _dynamic_entries(descriptor: int, segments: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    for kind, _, offset, _, _, size, _, _ in segments:
        if kind == _PT_DYNAMIC:
            count = min(size // _ENTRY.size, _MAX_ENTRIES)
            data = _pread(descriptor, count * _ENTRY.size, offset, "its dynamic section")
            entries: list[tuple[int, int]] = []
            for tag, value in _ENTRY.iter_unpack(data):
                if tag == _DT_NULL:
                    break
                entries.append((tag, value))
            return entries
    raise ElfError("is damaged: it has no dynamic section")


def _file_offset(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, start, _, size, _, _ in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise ElfError("is damaged: its table of names lies in no segment")


def _name(descriptor: int, offset: int) -> str:
    if offset >= 1 << 62:
        raise ElfError("is damaged: a name lies beyond its end")
    data = os.pread(descriptor, _MAX_NAME, offset)
    end = data.find(b"\0")
    if end < 0:
        raise ElfError("is damaged: a name has no end")
    return data[:end].decode("utf-8", "backslashreplace")
