"""Files that appear whole or not at all."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

SUFFIX = ".partial"


class _Partial(NamedTuple):
    file: BinaryIO
    path: Path
    target: Path


class NewFiles:
    """Files written under temporary names, which take their own names together when all are complete.

    On an error or an interrupt none of them stays. What a killed process left behind is removed by the next one
    that writes the same files: a lock tells the files of the living from those of the dead.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._partials: list[_Partial] = []
        self._renamed: list[Path] = []

    def create(self, name: str) -> BinaryIO:
        """Opens a new file that will be called `name`.

        Args:
            name: File name in the directory; a file of that name stays as it is until `commit`.

        Returns:
            The file, which this object closes.
        """
        for stale in self._directory.glob(f".{name}.*{SUFFIX}"):
            _remove_if_abandoned(stale)
        while True:
            path = self._directory / f".{name}.{secrets.token_hex(8)}{SUFFIX}"
            file = path.open("xb")
            self._partials.append(_Partial(file, path, self._directory / name))
            # File systems without locks exist; there, files of killed processes stay.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file
            # Another process took it for an abandoned one before it was locked.
            file.close()
            self._partials.pop()

    def commit(self) -> None:
        """Gives the files their names, in the order of their creation, replacing files of these names.

        The replaced files are removed in the opposite order first, so that the last one, if it is there, always
        belongs to the others.
        """
        for partial in self._partials:
            partial.file.flush()
        for partial in reversed(self._partials):
            partial.target.unlink(missing_ok=True)
        for partial in self._partials:
            self._renamed.append(partial.target)
            partial.path.replace(partial.target)
        self._renamed.clear()

    def __enter__(self) -> NewFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for path in self._renamed:
            path.unlink(missing_ok=True)
        for partial in self._partials:
            partial.path.unlink(missing_ok=True)
            with suppress(OSError):  # A full disk: what is still in the buffer is given up with the file.
                partial.file.close()


def _remove_if_abandoned(path: Path) -> None:
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
