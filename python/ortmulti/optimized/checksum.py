"""Checksums of files: against damage, not against malice."""

from __future__ import annotations

from ortmulti import _core


def checksum(path: str) -> str:
    """A checksum of the file's bytes.

    Raises:
        NoSuchFile: It cannot be read.
    """
    return f"{_core.file_checksum(path):016x}"
