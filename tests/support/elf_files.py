"""Small ELF shared libraries for tests, written byte by byte: no compiler needed, every field can be made wrong."""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence
from pathlib import Path

NATIVE_MACHINE = {"x86_64": 62, "aarch64": 183}.get(platform.machine(), 62)

_BASE = 0x10000  # where the first byte of the file would be mapped, so that addresses differ from offsets


def elf_bytes(soname: str | None = None, needed: Sequence[str] = (), *, machine: int = NATIVE_MACHINE) -> bytes:
    """An ELF64 shared library with nothing in it but its name and its dependencies."""
    strings = bytearray(b"\0")
    entries: list[tuple[int, int]] = []
    for tag, name in [*((1, name) for name in needed), *([(14, soname)] if soname is not None else [])]:
        entries.append((tag, len(strings)))
        strings += name.encode() + b"\0"
    dynamic_at = 64 + 2 * 56
    strings_at = dynamic_at + 16 * (len(entries) + 2)
    entries += [(5, _BASE + strings_at), (0, 0)]
    size = strings_at + len(strings)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, _BASE, _BASE, size, size, 4096)
    dynamic = struct.pack(
        "<IIQQQQQQ", 2, 4, dynamic_at, _BASE + dynamic_at, _BASE + dynamic_at, 16 * len(entries), 16 * len(entries), 8
    )
    return header + load + dynamic + b"".join(struct.pack("<qQ", *entry) for entry in entries) + bytes(strings)


def write_elf(path: Path, needed: Sequence[str] = (), *, machine: int = NATIVE_MACHINE) -> Path:
    """Write such a library, named after its file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf_bytes(path.name, needed, machine=machine))
    return path
