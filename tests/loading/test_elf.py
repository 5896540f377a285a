from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortmulti._runtime.elf import ElfError, SharedLibrary, read_shared_library
from tests.support.compiling import compile_library
from tests.support.elf_files import NATIVE_MACHINE, elf_bytes

names = st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF, exclude_categories=["Cs"]), max_size=40)
one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_names_and_dependencies_in_order(tmp_path: Path) -> None:
    file = tmp_path / "libthis.so.1"
    file.write_bytes(elf_bytes("libthis.so.1", ["libb.so.2", "liba.so.1"]))
    library = read_shared_library(file)
    assert library == SharedLibrary("libthis.so.1", ("libb.so.2", "liba.so.1"), NATIVE_MACHINE)
    assert library.is_native


@given(soname=st.none() | names, needed=st.lists(names, max_size=20))
@one_folder
def test_whatever_was_written_is_read(tmp_path: Path, soname: str | None, needed: list[str]) -> None:
    file = tmp_path / "library"
    file.write_bytes(elf_bytes(soname, needed))
    assert read_shared_library(file) == SharedLibrary(soname, tuple(needed), NATIVE_MACHINE)


def test_a_library_for_another_processor_is_told(tmp_path: Path) -> None:
    file = tmp_path / "libother.so"
    file.write_bytes(elf_bytes("libother.so", machine=8))
    assert not read_shared_library(file).is_native


def test_a_compiled_library(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a(void) { return 1; }")
    (tmp_path / "b.c").write_text("int a(void); int b(void); int b(void) { return a(); }")
    first = compile_library(tmp_path / "a.c", tmp_path / "liba.so.7", "-Wl,-soname,liba.so.7")
    compile_library(tmp_path / "b.c", tmp_path / "libb.so.8", "-Wl,-soname,libb.so.8", "-Wl,--no-as-needed", str(first))
    library = read_shared_library(tmp_path / "libb.so.8")
    assert library.soname == "libb.so.8"
    assert library.needed[0] == "liba.so.7"
    assert any(name.startswith("libc.so") for name in library.needed)
    assert library.is_native


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ELF file"),
        (b"PK\x03\x04 a zip file", "not an ELF file"),
        (elf_bytes("x")[:4], "64-bit"),
        (b"\x7fELF\x01\x01" + bytes(100), "64-bit"),
        (b"\x7fELF\x02\x02" + bytes(100), "little-endian"),
        (elf_bytes("x")[:40], "truncated"),
        (elf_bytes("x")[:100], "truncated"),
        (elf_bytes("libx.so")[:-3], "has no end"),
        (elf_bytes("x")[:16] + struct.pack("<H", 2) + elf_bytes("x")[18:], "not a shared library"),
        (elf_bytes("x")[:56] + struct.pack("<H", 0) + elf_bytes("x")[58:], "no dynamic section"),
        (elf_bytes("x")[:56] + struct.pack("<H", 0xFFFF) + elf_bytes("x")[58:], "program headers"),
        (elf_bytes("x")[:32] + struct.pack("<Q", 2**64 - 1) + elf_bytes("x")[40:], "program headers"),
    ],
)
def test_damaged_files_are_refused_with_the_reason(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "library"
    file.write_bytes(data)
    with pytest.raises(ElfError, match=message):
        read_shared_library(file)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ElfError, match="No such file"):
        read_shared_library(tmp_path / "absent")
    with pytest.raises(ElfError, match="Is a directory"):
        read_shared_library(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ElfError, match="not a regular file"):
        read_shared_library(tmp_path / "fifo")
    with pytest.raises(ElfError, match="cannot be opened"):
        read_shared_library(Path("nul\0byte"))


def read_or_refuse(file: Path) -> SharedLibrary | None:
    try:
        return read_shared_library(file)
    except ElfError:
        return None


@given(data=st.binary(max_size=400))
@one_folder
def test_arbitrary_bytes_give_no_other_error(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "library"
    file.write_bytes(data)
    assert read_or_refuse(file) is None
    file.write_bytes(b"\x7fELF\x02\x01" + data)
    library = read_or_refuse(file)
    assert library is None or isinstance(library.needed, tuple)


@given(
    edits=st.lists(
        st.tuples(st.integers(0, 45), st.sampled_from([0, 1, 0x7F, 0xFFFF, 2**31, 2**62, 2**63 - 1, 2**64 - 1]))
    ),
    length=st.integers(0, 400),
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_fields_give_no_other_error(tmp_path: Path, edits: list[tuple[int, int]], length: int) -> None:
    data = bytearray(elf_bytes("libthis.so.1", ["liba.so.1", "libb.so.2"]))
    for field, value in edits:
        at = min(16 + 8 * field, len(data) - 8)
        data[at : at + 8] = struct.pack("<Q", value)
    file = tmp_path / "library"
    file.write_bytes(data[: max(length, 6)] if length < len(data) else data)
    library = read_or_refuse(file)
    if library is not None:
        assert len(library.needed) <= 4096
        assert all(len(name) <= 4 * 1024 for name in library.needed)


def test_a_dynamic_section_without_an_end_is_bounded(tmp_path: Path) -> None:
    data = bytearray(elf_bytes("x"))
    data[64 + 56 + 32 : 64 + 56 + 40] = struct.pack("<Q", 16 * 2**20)  # the dynamic segment's size in the file
    names_at_start_of_file = struct.pack("<qQ", 5, 0x10000)
    data[64 + 2 * 56 :] = names_at_start_of_file + struct.pack("<qQ", 1, 1) * 2**20
    file = tmp_path / "library"
    file.write_bytes(data)
    library = read_shared_library(file)
    assert 0 < len(library.needed) < 4096
    assert set(library.needed) == {"ELF\x02\x01\x01"}
