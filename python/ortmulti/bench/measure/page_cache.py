"""The page cache of a model: its files, their resident share, and how to fill or empty it."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ortmulti import _core
from ortmulti.errors import Error, InvalidProtobuf, WeightsError

_READINGS = 5


def external_files(model: Path) -> tuple[Path, ...]:
    """Return the files beside `model` that hold its external data, sorted by name.

    Only the protobuf is read, not the weights.

    Raises:
        NoSuchFile: the model, or a file that it names, does not exist.
        InvalidProtobuf: the file is not an ONNX model.
        Fail: the model names a file outside of its folder.
    """
    source = _core.file_source(str(model))
    try:
        if source.size == 0:
            raise InvalidProtobuf("the file is empty")
        index = _core.index_model(source)
    except (InvalidProtobuf, WeightsError) as error:
        raise InvalidProtobuf(f"{model} is not an ONNX model: {error}") from error
    return tuple(Path(file.name) for file in _core.external_files(index, str(model.parent), str(model)))


def resident_share(files: Iterable[Path]) -> float:
    """Return the share of the files' pages that lie in the page cache, 0 to 1; 1 for files without bytes.

    Linux shows this only to users who own the file or may write to it; for others every page looks resident.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    flags = b""
    for file in files:
        if (size := file.stat().st_size) == 0:
            continue
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        # A private mapping is writable, which ctypes asks for, over a file that is only open for reading.
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) as mapping:
            first_byte = ctypes.c_char.from_buffer(mapping)
            failed = libc.mincore(ctypes.addressof(first_byte), size, pages)
            del first_byte  # the mapping cannot be closed while something points into it
        if failed:
            raise Error(f"mincore on {file} failed: {os.strerror(ctypes.get_errno())}")
        flags += pages.raw
    return sum(flag & 1 for flag in flags) / len(flags) if flags else 1.0


def drop(files: Sequence[Path]) -> float:
    """Remove the files from the page cache, so that the next read comes from the disk.

    Returns:
        The share that is still resident.

    Raises:
        Error: more than 1% is still resident, as pages that a running process maps.
    """
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())  # pages that are not yet on the disk are not dropped
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = resident_share(files)
    if share > 0.01:
        names = ", ".join(str(file) for file in files)
        raise Error(
            f"{share:.0%} of {names} stayed in the page cache: the files are in memory (tmpfs), mapped by another "
            "process, or belong to another user. For a cold measurement copy them to a disk and close other users"
        )
    return share


def read_sequentially(files: Sequence[Path]) -> float:
    """Return the seconds that `cat` takes to read the files, one after the other."""
    begin = time.perf_counter()
    done = subprocess.run(
        ["cat", "--", *files], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise Error(f"reading the model's files failed: {done.stderr.strip()}")
    return time.perf_counter() - begin


def warm(files: Sequence[Path]) -> float:
    """Read the files that are not completely in the page cache. Return the resident share after that.

    Pages that the kernel reclaims meanwhile are read again, a few times.
    """
    for _ in range(_READINGS):
        missing = [file for file in files if resident_share([file]) < 1.0]
        if not missing:
            return 1.0
        read_sequentially(missing)
    return resident_share(files)
