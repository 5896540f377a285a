"""Files that a user names: read as regular files only, opened once, and written as a whole."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ortmulti import _core


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read it; a FIFO or a device is refused instead of waited for.

    Raises:
        OSError: The file cannot be opened, or is no regular file.
    """
    file = open(path, "rb", opener=_core.open_nonblocking)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def read_json(path: str | os.PathLike[str], max_bytes: int) -> Any:
    """Read a JSON file.

    Raises:
        OSError: The file cannot be opened or read.
        ValueError: The file is not JSON, is nested too deeply, or has more than `max_bytes`.
    """
    import json

    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes} bytes, the limit for such a file")
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_atomically(path: Path, write: Callable[[Path], object], *, make_folder: bool = True) -> None:
    """Write a temporary file beside `path` and rename it. Readers see the old or the new content, never a part, also
    after an interruption.

    Args:
        path: the file.
        write: called with the temporary file's path, which has the suffix of `path`.
        make_folder: whether missing folders are made.
    """
    import secrets

    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.stem}-{secrets.token_hex(8)}{path.suffix}"
    try:
        write(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
