"""Folders that a process fills before others can see them. If it is killed, the next process removes them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from ortmulti import _core

_SUFFIX = ".lock"

# Others hold the lock while they rename and delete, never while they compute.
_PATIENCE = 30.0
_POLL = 0.02


def remove_tree(folder: Path) -> None:
    """Remove as much of a folder as possible; the next process tries again.

    Unlike `shutil.rmtree` it has no bare descriptors, which Ctrl-C at the wrong moment would leave open.
    """
    for where, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                path = Path(where, name)
                if name in folders and not path.is_symlink():
                    path.rmdir()
                else:
                    path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def check_private(folder: Path) -> None:
    """Check that no other user can change the content of a folder; root may.

    Raises:
        PermissionError: Another user owns the folder, or may write to it.
        OSError: There is no such folder.
    """
    status = folder.stat()
    for owner in (folder.lstat().st_uid, status.st_uid):  # of a symbolic link, and of its target
        if owner not in (0, os.geteuid()):
            raise PermissionError(
                errno.EPERM, f"user {owner} owns {folder}; set ORTMULTI_CACHE to a folder of your own"
            )
    if status.st_mode & 0o022:
        mode = f"{status.st_mode & 0o7777:o}"
        raise PermissionError(errno.EPERM, f"other users may write to {folder} (mode {mode}); run chmod go-w on it")


class StagingDir:
    """The staged entries below one folder, and the lock of this folder.

    Each staged entry has a lock of its own. Its process holds the lock, and the kernel releases it when the process
    dies. So a staged entry without a holder was abandoned, whichever container or host its process lived in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._staging = folder / "staging"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the whole folder. The folder is made if necessary.

        Raises:
            OSError: The folder cannot be made or written to, other users can change it, or another process keeps the
                lock.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(self._folder)
        self._staging.mkdir(mode=0o700, exist_ok=True)
        check_private(self._staging)
        path = self._folder / "lock"
        lock = _lock(path, _PATIENCE)
        if lock is None:
            raise OSError(errno.EAGAIN, f"another process has held {path} for {_PATIENCE:.0f} s")
        with lock:
            yield

    def new(self) -> StagedFolder:
        """Make a folder, and remove those of killed processes.

        Raises:
            OSError: It cannot be made.
        """
        with self.locked():
            self.remove_abandoned()
            folder = self._staging / f"{os.getpid()}-{os.urandom(4).hex()}"
            lock = _lock(_lock_path(folder))
            if lock is None:
                raise OSError(errno.EAGAIN, f"another process holds {_lock_path(folder)}")
            try:
                folder.mkdir(mode=0o700)
            except BaseException:
                _lock_path(folder).unlink(missing_ok=True)
                lock.close()
                raise
        return StagedFolder(folder, lock)

    def kept(self, place: Path, make: Callable[[Path], object]) -> Path:
        """Return a folder within a folder of this one, and make it if it is not there.

        Args:
            place: The folder.
            make: Makes the folder that it is given, or raises.

        Raises:
            OSError: It cannot be written, or other users can change it.
        """
        if place.exists():
            check_private(self._folder)
            check_private(place.parent)
            return place
        staged = self.new()
        try:
            made = staged.path / "made"
            make(made)
            with self.locked():
                place.parent.mkdir(mode=0o700, exist_ok=True)
                check_private(place.parent)
                if not place.exists():  # another process may have been faster
                    made.rename(place)
        finally:
            staged.done()
        return place

    def remove(self, folder: Path) -> None:
        """Remove a folder that other processes may look for; only while `locked`.

        Killed half-way, it leaves a staged entry without a holder.
        """
        gone = self._staging / f"removed-{os.urandom(4).hex()}"
        folder.rename(gone)
        remove_tree(gone)

    def remove_abandoned(self) -> None:
        """Remove staged entries whose process is gone; only while `locked`."""
        for path in sorted(self._staging.iterdir()):
            folder = path.with_suffix("") if path.suffix == _SUFFIX else path
            lock = _lock(_lock_path(folder))
            if lock is not None:
                with lock:
                    remove_tree(folder)
                    _lock_path(folder).unlink(missing_ok=True)


class StagedFolder:
    """A folder of this process, locked if other processes search there for abandoned folders."""

    def __init__(self, path: Path, lock: FileIO | None) -> None:
        self.path = path
        self._lock = lock
        self._process = os.getpid()

    def done(self) -> None:
        """Remove the folder and its remaining content. A forked child does nothing: the folder is its parent's."""
        if os.getpid() != self._process:
            return
        if self._lock is None:
            remove_tree(self.path)
        elif not self._lock.closed:
            remove_tree(self.path)
            _lock_path(self.path).unlink(missing_ok=True)
            self._lock.close()


def temporary_folder() -> StagedFolder:
    """Make a staged entry's folder outside of the cache. Other users cannot read it.

    Raises:
        OSError: It cannot be made.
    """
    import tempfile

    return StagedFolder(Path(tempfile.mkdtemp(prefix="ortmulti-")), None)


def _lock_path(folder: Path) -> Path:
    return folder.with_name(folder.name + _SUFFIX)


def _lock(path: Path, patience: float = 0.0) -> FileIO | None:
    """Lock a file, and make it if necessary. Return None if another process holds it for ``patience`` seconds.

    Only the file object has the descriptor. So Ctrl-C at any point leaves no lock behind.

    Raises:
        OSError: It cannot be opened or locked.
    """
    end = time.monotonic() + patience
    while True:
        file = open(path, "ab", buffering=0, opener=_core.open_nofollow)  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            if time.monotonic() >= end:
                return None
            time.sleep(_POLL)
            continue
        except OSError:
            file.close()
            raise
        if os.fstat(file.fileno()).st_nlink > 0:
            return file
        file.close()  # its holder removed it, and others lock the next one
