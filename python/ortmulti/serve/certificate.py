"""Files of TLS that are renewed while a server runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ortmulti.errors import Error

__all__ = ["Certificate"]

LOGGER = logging.getLogger("ortmulti.serve")


class Certificate:
    """Files of TLS, which may be renewed.

    Args:
        files: The files.
    """

    def __init__(self, *files: Path) -> None:
        self._files = files
        self._seen = [_state(file) for file in files]

    def look(self, renew: Callable[[], None]) -> None:
        """Call `renew` if a file has changed since the last look. Its error is logged."""
        seen = [_state(file) for file in self._files]
        if seen == self._seen:
            return
        self._seen = seen
        try:
            renew()
        except Error as error:
            LOGGER.error("the renewed certificate is not used, and the one from before stays: %s", error)
        else:
            LOGGER.info("new connections have the renewed certificate in %s", self._files[0])


def _state(file: Path) -> tuple[int, ...]:
    """Return what is another if the file was replaced or written; () where it cannot be looked at."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
