"""Files of inputs: good ones, and those that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortmulti._array_file import read_arrays
from ortmulti.errors import InvalidArgument, NoSuchFile


def test_arrays_come_back_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, x=np.ones((2, 3), np.float16), y=np.array(["a", "b"]))
    arrays = read_arrays(path)
    assert list(arrays) == ["x", "y"]
    np.testing.assert_array_equal(arrays["x"], np.ones((2, 3), np.float16))
    assert arrays["x"].dtype == np.float16
    assert arrays["y"].tolist() == ["a", "b"]


def _truncated(path: Path) -> None:
    np.savez(path, x=np.zeros(1000))
    path.write_bytes(path.read_bytes()[:500])


def _damaged(path: Path) -> None:
    np.savez(path, x=np.zeros(1000))
    content = bytearray(path.read_bytes())
    content[200] ^= 1  # within the array
    path.write_bytes(content)


def _one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text("no archive"),
        lambda path: path.write_bytes(b""),
        _truncated,
        _damaged,
        _one_array,
        lambda path: np.savez(path, x=np.array([{}], object)),
    ],
    ids=["text", "empty", "truncated", "damaged", "one array", "objects"],
)
def test_what_is_no_archive_of_arrays_is_refused(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "inputs.npz"
    write(path)
    with pytest.raises(InvalidArgument, match=r"inputs\.npz' is no \.npz file with an array for each input: \w"):
        read_arrays(path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"missing\.npz' cannot be read: No such file"):
        read_arrays(tmp_path / "missing.npz")
    with pytest.raises(NoSuchFile, match="cannot be read: Is a directory"):
        read_arrays(tmp_path)
