"""Files that a user names: regular files only, opened once."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

_MAX_JSON_BYTES = 1 << 28


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read it; a FIFO or a device is refused instead of waited for.

    Raises:
        OSError: The file cannot be opened, or is no regular file.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"'{path}' is not a regular file")
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # without it, opening a FIFO waits for a writer


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: The file cannot be opened or read.
        ValueError: The file is not JSON, is nested too deeply, or has more than 256 MiB.
    """
    import json

    with open_regular(path) as file:
        content = file.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError(f"it has more than {_MAX_JSON_BYTES} bytes")
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
