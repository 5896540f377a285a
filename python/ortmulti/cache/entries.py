"""The optimized models that this user's processes keep on the disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ortmulti import _core
from ortmulti._runtime import native
from ortmulti.cache import entry as _entry
from ortmulti.cache.entry import Damaged, Entry
from ortmulti.cache.key import CacheKey
from ortmulti.cache.staging import StagedFolder, StagingDir, check_private, remove_tree, temporary_folder
from ortmulti.errors import Error, InvalidArgument, NotOptimizable

LOCATION = "ORTMULTI_CACHE"
"""Environment variable: the cache's folder."""

SIZE = "ORTMULTI_CACHE_SIZE"
"""Environment variable: how much the entries may take together, such as ``5GB``."""

_USED = "used.txt"
"""In each of `Cache.folders`: the path of its model. Its time is that of the last use."""

_DEFAULT_SIZE = 20 * 10**9
_PREFIXES = "kmgt"

_LOGGER = logging.getLogger("ortmulti")

_said: set[str] = set()
_said_lock = native.Lock()


@dataclass(frozen=True)
class Stored:
    """An entry in the list of the cache.

    Attributes:
        folder: Where it lies.
        model: The path of its model; empty for a model in bytes.
        bytes: Its size on the disk.
        last_used: Seconds since 1970.
        facts: Its manifest; None if it is damaged or has another release's format. Of `Cache.folders` it is ``"form"``
            alone, the end of the name.
    """

    folder: Path
    model: str
    bytes: int
    last_used: float
    facts: Mapping[str, Any] | None


@dataclass(frozen=True)
class Cleared:
    """The result of clearing the cache: removed entries and bytes. ``in_use`` entries are being loaded and stayed."""

    entries: int
    bytes: int
    in_use: int


class Cache:
    """Optimized models below one folder, which several processes may use at the same time.

    If the cache is not writable, the logger ``ortmulti`` warns once, and its entries are still read. A cache that other
    users can change is not used at all. `folders` has what is no entry: it is listed, and removed, as entries are.
    """

    def __init__(self, folder: Path, limit: int = _DEFAULT_SIZE) -> None:
        self.folder = folder
        self.limit = limit
        self._entries = folder / "entries"
        self.folders = folder / "folders"
        self._scratch = StagingDir(folder)

    @classmethod
    def default(cls) -> Self:
        """Return the cache of the environment variable, or the one in the user's cache folder.

        Raises:
            InvalidArgument: ``ORTMULTI_CACHE_SIZE`` is no size.
        """
        folder = os.environ.get(LOCATION) or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "ortmulti")
        return cls(Path(folder).expanduser().absolute(), parse_size(os.environ.get(SIZE) or str(_DEFAULT_SIZE)))

    def find(self, key: CacheKey, *, verify: bool = False) -> Entry | None:
        """Return the entry for ``key``. An entry that is found damaged is removed.

        Args:
            key: The model's present key.
            verify: Read all of the entry and compare its checksums. Otherwise only the manifest's checksum and the
                sizes of the other files are compared, and `Entry.verify` may run beside other work.

        Returns:
            The open entry; None if there is no complete one.
        """
        if key.changed_source() is not None:
            return None
        try:
            check_private(self.folder)
            check_private(self._entries)
        except PermissionError as error:
            self.say_unwritable(error)
            return None
        except OSError:
            return None
        try:
            return _entry.open_entry(self._folder_of(key), key, verify=verify)
        except Damaged as damage:
            self.remove(key, damage)
            return None

    def remove(self, key: CacheKey, damage: Damaged) -> None:
        """Remove the damaged entry for ``key``, unless another process has replaced it by a good one."""
        folder = self._folder_of(key)
        _LOGGER.warning("the cached optimized model in %s is damaged and will be made again: %s", folder, str(damage))
        try:
            self._remove_damaged(folder, key)
        except OSError as error:
            self.say_unwritable(error)

    def discard(self, key: CacheKey, reason: str) -> None:
        """Remove the whole entry for ``key``, because its provider refuses it, unless a process loads it."""
        folder = self._folder_of(key)
        _LOGGER.warning("the compiled model in %s cannot be loaded and will be made again: %s", folder, reason)
        try:
            with self._scratch.locked(), _free(folder) as free:
                if free:
                    self._scratch.remove(folder)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            self.say_unwritable(error)

    def stage(self, key: CacheKey) -> StagedEntry:
        """Make an empty folder for a new entry: a temporary one if the cache is not writable.

        Raises:
            NotOptimizable: Neither can be written.
        """
        try:
            return StagedEntry(self, key, self._scratch.new())
        except OSError as error:
            self.say_unwritable(error)
        try:
            return StagedEntry(None, key, temporary_folder())
        except OSError as error:
            raise NotOptimizable(f"the optimized model cannot be stored: {error}") from error

    def entries(self) -> list[Stored]:
        """Return all entries, the last used first."""
        return sorted(self._stored(), key=lambda stored: stored.last_used, reverse=True)

    def clear(self) -> Cleared:
        """Remove all entries that are not being loaded, all other folders, and the remains of killed processes.

        Raises:
            Error: The cache cannot be written.
        """
        if not self.folder.is_dir():
            return Cleared(0, 0, 0)
        removed = size = in_use = 0
        try:
            with self._scratch.locked():
                self._scratch.remove_abandoned()
                if self.folders.is_dir():
                    removed += len(list(self.folders.iterdir()))
                    size += sum(file.stat().st_size for file in self.folders.rglob("*") if file.is_file())
                    self._scratch.remove(self.folders)
                for folder, taken, _ in self._sizes():
                    with _free(folder) as free:
                        if free:
                            self._scratch.remove(folder)
                            removed += 1
                            size += taken
                        else:
                            in_use += 1
        except OSError as error:
            raise Error(f"the cache of optimized models in {self.folder} cannot be cleared: {error}") from error
        return Cleared(removed, size, in_use)

    def take(self, key: CacheKey, staged: Path) -> Entry:
        """Move a staged entry into the cache, unless another process was faster.

        Raises:
            OSError: It cannot be written.
        """
        target = self._folder_of(key)
        self._remove_damaged(target, key)
        with self._scratch.locked():
            self._entries.mkdir(mode=0o700, exist_ok=True)
            check_private(self._entries)
            if not target.exists():
                staged.rename(target)
            found = _entry.open_entry(target, key, verify=False)
            if found is None:
                raise OSError(errno.EBUSY, "the entry is in the way and cannot be used", str(target))
            self._keep_bound(target)
        return found

    def use(self, folder: Path, model: Path) -> None:
        """Note that one of `folders` is used now, and of which model, unless the cache cannot be written. When it is
        new, others are removed as far as the limit wants.
        """
        note = folder / _USED
        new = not note.exists()
        with contextlib.suppress(OSError):  # it can be read all the same
            note.write_text(str(model), "utf-8", "surrogateescape")
            if new:
                with self._scratch.locked():
                    self._keep_bound(folder)

    def say_unused(self, reason: object) -> None:
        """Warn once that this cache is not used, with the reason."""
        _say_once(f"the cache of optimized models in {self.folder} is not used: {reason}")

    def say_unwritable(self, error: OSError | Damaged) -> None:
        """Warn once that this cache cannot be written, with the reason."""
        reason = error.strerror if isinstance(error, OSError) else None
        self.say_unused(f"it cannot be written: {reason or error}")

    def _folder_of(self, key: CacheKey) -> Path:
        return self._entries / key.digest

    def _remove_damaged(self, folder: Path, key: CacheKey) -> None:
        """Remove the entry in ``folder`` if it is damaged. The cache is not locked while the entry is read."""
        with contextlib.ExitStack() as stack:
            try:
                # While it is open, no other folder has its inode. Ctrl-C leaves it open nowhere.
                stack.enter_context(os.scandir(folder))
                seen = folder.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return
            if not stat.S_ISDIR(seen.st_mode):
                return
            try:
                found = _entry.open_entry(folder, key, verify=True)
            except Damaged:
                with self._scratch.locked(), contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(seen, folder.lstat()):  # no other process has replaced it by a whole one
                        self._scratch.remove(folder)
            else:
                if found is not None:
                    found.close()

    def _stored(self) -> Iterator[Stored]:
        for folder, size, used in self._sizes():
            if folder.parent == self.folders:
                yield Stored(folder, _model_of(folder), size, used, {"form": folder.name.partition("-")[2]})
                continue
            try:
                facts: dict[str, Any] | None = _entry.read_manifest(folder)
            except Damaged:
                facts = None
            yield Stored(folder, facts["model"] if facts else "", size, used, facts)

    def _sizes(self) -> Iterator[tuple[Path, int, float]]:
        """The folder, bytes and last use of each entry, and of each of `folders`."""
        for within, note in ((self._entries, _entry.MANIFEST), (self.folders, _USED)):
            try:
                folders = [folder for folder in within.iterdir() if folder.is_dir()]
            except OSError:
                continue
            for folder in folders:
                with contextlib.suppress(OSError):  # it may just have been removed
                    found = {file: file.lstat() for file in folder.rglob("*")}
                    size = sum(status.st_size for status in found.values() if not stat.S_ISDIR(status.st_mode))
                    yield folder, size, found.get(folder / note, folder.lstat()).st_mtime

    def _keep_bound(self, newest: Path) -> None:
        """Remove the least recently used entries; only while locked."""
        stored = sorted(self._sizes(), key=lambda entry: entry[2])
        total = sum(size for _, size, _ in stored)
        for folder, size, _ in stored:
            if total <= self.limit:
                return
            if folder != newest:
                with _free(folder) as free:
                    if free:
                        self._scratch.remove(folder)
                        total -= size


class StagedEntry:
    """An entry that is being made. As a context manager it removes an unpublished entry at the end.

    Attributes:
        folder: Where the entry's files go.
        key: Its key.
        signature: Inputs and outputs of the saved model; None before.
        timeline: The spans of the optimization; None before.
    """

    def __init__(self, cache: Cache | None, key: CacheKey, folder: StagedFolder) -> None:
        self._cache = cache
        self._own = folder
        self._entry: Entry | None = None
        self.key = key
        self.signature: Any = None
        self.timeline: _core.Timeline | None = None

    @property
    def folder(self) -> Path:
        return self._own.path

    @property
    def saved(self) -> Path:
        """The path for ONNX Runtime's optimized model, in a separate folder outside of the entry."""
        return self.folder / "saved" / "model.onnx"

    def finish(
        self,
        weights: _core.WeightList,
        own_bytes: int,
        refused: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Turn the content of ``folder`` into an entry that others cannot see yet.

        Args:
            weights: The weights that are shared.
            own_bytes: Bytes of the tensors that only the entry has.
            refused: Names of weights that are not shared because ONNX Runtime does not take them.
            facts: Further facts for the list of the cache.

        Raises:
            NotOptimizable: A file of the model was changed since the key was made.
            OSError: It cannot be written.
        """
        if (changed := self.key.changed_source()) is not None:
            raise NotOptimizable(f"the file {changed} was changed while the model was optimized")
        try:
            self._entry = _entry.write(self.folder, self.key, weights, own_bytes, refused, facts or {})
        except Damaged as error:
            raise NotOptimizable(str(error)) from error
        return self._entry

    def publish(self) -> Entry:
        """Put the finished entry into the cache.

        Returns:
            The open entry in the cache: this one, or the one of a faster process. Without a cache, or if it cannot be
                written or is too small: this entry in its place, which vanishes with the staged entry.
        """
        if self._entry is None:
            raise RuntimeError("a staged entry is finished before it is published")
        if self._cache is None:
            return self._entry
        if self._entry.bytes > self._cache.limit:
            self._cache.say_unused(f"the entry of {self._entry.bytes} bytes is larger than the cache may be ({SIZE})")
            return self._entry
        remove_tree(self.saved.parent)
        try:
            published = self._cache.take(self.key, self.folder)
        except (OSError, Damaged) as error:
            self._cache.say_unwritable(error)
            return self._entry
        self._own.done()
        return published

    def discard(self) -> None:
        """Remove the staged entry, unless it was published."""
        self._own.done()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.discard()


def parse_size(text: str) -> int:
    """Return bytes of a size such as ``20GB``, ``1.5 GiB`` or ``1000000``.

    Raises:
        InvalidArgument: It is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.strip().lower())
    if match is None:
        raise InvalidArgument(f"{SIZE} is a size such as 20GB, not {text!r}")
    prefix = match[2] or ""
    power = _PREFIXES.index(prefix[0]) + 1 if prefix else 0
    return int(float(match[1]) * (1024 if prefix.endswith("i") else 1000) ** power)


@contextlib.contextmanager
def _free(folder: Path) -> Iterator[bool]:
    """Yield whether no process loads the entry in ``folder``. Meanwhile none can begin to."""
    try:
        lock = open(folder / _entry.MANIFEST, "r+b", buffering=0, opener=_core.open_nofollow)  # noqa: SIM115
    except OSError:
        yield True  # what has no manifest cannot be loaded
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass  # a file system without locks
        yield True


def _model_of(folder: Path) -> str:
    try:
        return (folder / _USED).read_text("utf-8", "replace")
    except OSError:  # of an earlier release
        return ""


def _say_once(text: str) -> None:
    with _said_lock:
        if text in _said:
            return
        _said.add(text)
    _LOGGER.warning("%s", text)
