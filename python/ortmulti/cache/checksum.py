"""Checksums of files: against damage, not against malice."""

from __future__ import annotations

from collections.abc import Callable

from ortmulti import _core


def checksum(path: str, poll: Callable[[], object] | None = None) -> str:
    """Compute a checksum of the file's bytes. Ctrl-C ends it in the main thread.

    Args:
        path: The file.
        poll: Called in short intervals. An exception that it raises ends the computation.

    Raises:
        Error: The file cannot be read.
    """
    return f"{_core.file_checksum(path, poll):016x}"
