"""Folders that a process fills before anybody else sees them, and that the next one removes if it was killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock

_SUFFIX = ".lock"

# Others hold the lock while they rename and delete, never while they compute.
_PATIENCE = 30.0


def remove_tree(folder: Path) -> None:
    """Removes what can be removed of a folder; the next process tries again."""
    import shutil  # late: finding an entry does without

    shutil.rmtree(folder, ignore_errors=True)


class Scratch:
    """The drafts below one folder, and the lock that orders what happens to it.

    Each draft has a lock of its own, which its process holds and the kernel releases when that dies: so a draft without
    a holder was abandoned, whichever container or host its process lived in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._drafts = folder / "drafts"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the whole folder, which is made if need be.

        Raises:
            OSError: The folder cannot be made or written to, or others do not let go of the lock.
        """
        from filelock import FileLock

        self._drafts.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / "lock", timeout=_PATIENCE, thread_local=False):
            yield

    def new(self) -> DraftFolder:
        """Makes a folder, and removes those that killed processes left.

        Raises:
            OSError: It cannot be made.
        """
        with self.locked():
            self.remove_abandoned()
            folder = self._drafts / f"{os.getpid()}-{os.urandom(4).hex()}"
            lock = _lock(folder)
            lock.acquire(blocking=False)
            try:
                folder.mkdir()
            except BaseException:
                _lock_path(folder).unlink(missing_ok=True)
                lock.release()
                raise
        return DraftFolder(folder, lock)

    def remove(self, folder: Path) -> None:
        """Removes a folder that others may be looking for; only while `locked`. Killed half-way, it leaves a draft
        without a holder."""
        gone = self._drafts / f"removed-{os.urandom(4).hex()}"
        folder.rename(gone)
        remove_tree(gone)

    def remove_abandoned(self) -> None:
        """Removes drafts whose process is gone; only while `locked`."""
        for path in sorted(self._drafts.iterdir()):
            folder = path.with_suffix("") if path.suffix == _SUFFIX else path
            with _lock_if_free(folder) as free:
                if free:
                    remove_tree(folder)
                    _lock_path(folder).unlink(missing_ok=True)


class DraftFolder:
    """A folder of this process's own."""

    def __init__(self, path: Path, lock: BaseFileLock) -> None:
        self.path = path
        self._lock = lock
        self._process = os.getpid()

    def done(self) -> None:
        """Removes the folder, or what was not moved out of it; in a forked child nothing, since it is the parent's."""
        if os.getpid() != self._process or not self._lock.is_locked:
            return
        remove_tree(self.path)
        _lock_path(self.path).unlink(missing_ok=True)
        self._lock.release()


def _lock_path(folder: Path) -> Path:
    return folder.with_name(folder.name + _SUFFIX)


def _lock(folder: Path) -> BaseFileLock:
    from filelock import FileLock

    # thread_local: a draft may be finished by another thread than the one that began it.
    return FileLock(_lock_path(folder), thread_local=False)


@contextlib.contextmanager
def _lock_if_free(folder: Path) -> Iterator[bool]:
    from filelock import Timeout

    lock = _lock(folder)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
