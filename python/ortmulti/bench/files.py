"""Safe use of text and arrays from strangers' files: no pickles, and no control characters for a terminal.

A model's inputs are .npz files of arrays by name: from users, and for the processes of a measurement. Strings are
stored as NumPy's "U" arrays.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortmulti._runtime.machine import available_memory
from ortmulti._runtime.regular_file import open_regular
from ortmulti.errors import InvalidArgument, NoSuchFile

_FITS = 1 << 26
"""Bytes that fit into the memory of every machine."""


def read_arrays(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an .npz file. The file is opened once.

    Raises:
        NoSuchFile: The file cannot be opened.
        InvalidArgument: It is not an .npz file, is damaged, has Python objects, or its arrays do not fit into memory.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        raise NoSuchFile(f"the inputs '{path}' cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the path
        raise InvalidArgument(f"the inputs {str(path)!r} cannot be read: {error}") from error
    where = ""
    with file:
        try:
            arrays: dict[str, npt.NDArray[Any]] = {}
            with zipfile.ZipFile(file) as archive:
                # A member yields at most the bytes of its size, so this bounds the memory of all arrays.
                _check_memory(sum(member.file_size for member in archive.infolist()))
                for member in archive.infolist():
                    name = member.filename.removesuffix(".npy")
                    where = f"array {name!r}: "
                    if name in arrays:
                        raise InvalidArgument("there are two arrays of this name")
                    with archive.open(member) as content:
                        arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
            return arrays
        except Exception as error:  # damaged files raise a dozen types in zipfile, zlib and NumPy
            reason = str(error) or type(error).__name__
    if reason.startswith("Object arrays"):
        reason = "Python objects are never loaded: save strings as np.array(strings, 'U')"
    raise InvalidArgument(f"'{path}' is no .npz file with an array for each input: {where}{reason}")


def _check_memory(needed: int) -> None:
    if needed <= _FITS:
        return
    free = available_memory()
    if needed > free:
        raise InvalidArgument(f"its arrays need {needed} bytes of memory, and {free} are free")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file that `read_arrays` reads. Any names are allowed, unlike in `numpy.savez`.

    Raises:
        InvalidArgument: An array has Python objects other than strings, bytes that are not UTF-8, a string that ends in
            a NUL character, or a dtype that is not NumPy's own.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in arrays.items():
            array = np.asarray(value)
            if array.dtype.kind in "OS":
                strings = [_text(name, one) for one in array.ravel().tolist()]
                array = np.array(strings, "U").reshape(array.shape)
            elif array.dtype.kind == "V":
                raise InvalidArgument(f"input {name!r} has the dtype {array.dtype}, which a .npz file cannot keep")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _text(name: str, value: object) -> str:
    # Bytes become text: onnxruntime reads past the ends of NumPy's byte strings.
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"input {name!r} has the bytes {value!r}, expected UTF-8") from None
    if not isinstance(value, str):
        raise InvalidArgument(f"input {name!r} has an object of type {type(value).__name__}, expected str or bytes")
    if value.endswith("\0"):
        raise InvalidArgument(f"input {name!r} has the string {value!r}: a NUL at the end is not kept in a file")
    return value


def printable(text: str) -> str:
    """Replace control and direction characters, which a terminal or a browser would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else f"\\u{ord(c):04x}" for c in text)


def printable_lines(text: str) -> str:
    """Same as `printable`, and keep the line breaks."""
    return "\n".join(map(printable, text.split("\n")))
