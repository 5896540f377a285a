"""Files of inputs: good ones, and those that are none."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.errors import InvalidArgument, NoSuchFile


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _header(text: str, size: int = 120) -> bytes:
    """The first part of an .npy file, with this dictionary."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", size) + text.encode().ljust(size - 1) + b"\n"


def _bytes(count: int) -> bytes:
    return _header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count},), }}")


def _archive(content: bytes, name: str = "x.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


ARRAY = _npy(np.arange(1000.0))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no archive", "not a zip file"),
        (_archive(_npy(np.array([{}], object))), "array 'x': Python objects are never loaded"),
        (_archive(b"hello", name="readme.txt"), "array 'readme.txt': "),
        (_archive(ARRAY)[:60] + b"\xff" * 10 + _archive(ARRAY)[70:], "Error -3 while decompressing"),
        (_archive(_header("(" * 9000, 9100)), "array 'x': "),
        (_archive(_bytes(10**13)), "array 'x': "),
        (_archive(_bytes(10**9)), "array 'x': EOF"),
    ],
)
def test_damaged_arrays_are_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    path.write_bytes(content)
    with pytest.raises(
        InvalidArgument, match=r"inputs\.npz' is no \.npz file with an array for each input: .*" + reason
    ):
        read_arrays(path)


def test_two_arrays_of_a_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "inputs.npz", "w") as archive:
        archive.writestr("x.npy", ARRAY)
        archive.writestr("x", ARRAY)
    with pytest.raises(InvalidArgument, match="array 'x': there are two arrays of this name"):
        read_arrays(tmp_path / "inputs.npz")


def test_arrays_that_need_more_memory_than_there_is_are_refused(tmp_path: Path) -> None:
    """A small file that would expand to 4 TiB: its members share their data."""
    content = bytearray(_archive(_bytes(10) + bytes(10)))
    place = content.find(b"PK\x01\x02")
    struct.pack_into("<I", content, place + 24, 2**32 - 2)  # the size in the central directory
    entry, end = content[place : content.find(b"PK\x05\x06")], content[content.find(b"PK\x05\x06") :]
    struct.pack_into("<HHI", end, 8, 1024, 1024, 1024 * len(entry))
    path = tmp_path / "inputs.npz"
    path.write_bytes(content[:place] + entry * 1024 + end)
    with pytest.raises(
        InvalidArgument, match=rf"its arrays need {1024 * (2**32 - 2)} bytes of memory, and \d+ are free"
    ):
        read_arrays(path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in {"missing.npz": "No such file", "": "Is a directory", "fifo": "not a regular file"}.items():
        with pytest.raises(NoSuchFile, match=f"cannot be read: {reason}"):
            read_arrays(tmp_path / path)
    with pytest.raises(InvalidArgument, match="embedded null byte"):
        read_arrays(tmp_path / "a\0b")


def test_arrays_are_written_for_reading(tmp_path: Path) -> None:
    """Under any name, and strings without Python objects in the file."""
    arrays: dict[str, Any] = {
        "file": np.arange(6, dtype=np.int16).reshape(2, 3),
        "allow_pickle": np.asfortranarray(np.ones((2, 3))),
        "x.npy": np.array(2.5, np.float16),
        "a/b": np.zeros((0, 4)),
        "str": np.array([["a", "bc"], ["", "\u00e4"]], object),
        "bytes": np.array([b"a", b"bc"]),
        "mixed": np.array(["\u00e4", "\u00e4".encode()], object),
        "none": np.array([], object),
    }
    write_arrays(tmp_path / "arrays.npz", arrays)
    with np.load(tmp_path / "arrays.npz") as archive:  # without pickle
        assert len(archive.files) == len(arrays)
    found = read_arrays(tmp_path / "arrays.npz")
    assert list(found) == list(arrays)
    for name in ("file", "allow_pickle", "x.npy", "a/b"):
        assert found[name].dtype == arrays[name].dtype
        np.testing.assert_array_equal(found[name], arrays[name])
    assert found["str"].tolist() == arrays["str"].tolist()
    assert found["bytes"].tolist() == ["a", "bc"]
    assert found["mixed"].tolist() == ["\u00e4", "\u00e4"]
    assert found["none"].shape == (0,)


@pytest.mark.parametrize(
    ("value", "what"), [([None], "type NoneType"), (["a\0"], "NUL at the end"), ([b"\xff"], "UTF-8")]
)
def test_objects_that_no_file_keeps_are_refused(value: list[Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"input 'x' has .*{what}"):
        write_arrays(tmp_path / "arrays.npz", {"x": np.array(value, object)})
