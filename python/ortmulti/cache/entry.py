"""An optimized model in its folder: its manifest, and the checksums of its files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import weakref
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti._runtime.closing import Closing
from ortmulti.cache.key import FORMAT, CacheKey
from ortmulti.cache.staging import check_private
from ortmulti.errors import Error

MANIFEST = "manifest.json"
MODEL = "model.onnx"
PLACEHOLDER = "shared"
"""Where the graph says that shared weights lie. Empty, so that one that is not given is an error and never zeros."""


# Of a manifest: some 400,000 weights.
_MAX_MANIFEST_BYTES = 64 << 20

_WEIGHT = ("name", "data_type", "shape", "source", "offset", "length")
"""The attributes of a weight, in the order in which a manifest has them."""

_FIELDS: dict[str, type] = {
    "key": str,
    "made_of": dict,
    "model": str,
    "files": dict,
    "weights": dict,
    "own_bytes": int,
    "refused": list,
}


class Damaged(Exception):  # noqa: N818  (a state, which callers act on)
    """An entry differs from what was written; the message says how."""


class Entry(Closing):
    """One optimized model. While it is open, no process removes it from the cache.

    Attributes:
        folder: Where it lies.
        facts: The content of its manifest.
        weights: The shared weights, and the files that they are read from.
        refused: Names of weights that ONNX Runtime does not take. They are not among ``weights``.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], key: CacheKey, lock: FileIO | None) -> None:
        self.folder = folder
        self.facts = facts
        self.weights = _weight_list(folder, facts["weights"], key)
        self.refused: tuple[str, ...] = tuple(facts["refused"])
        self._close = weakref.finalize(self, _close, lock)

    @property
    def model_path(self) -> str:
        """The optimized model."""
        return str(self.folder / MODEL)

    @property
    def signature(self) -> Any:
        """Inputs and outputs of the saved model; see `build.signature`."""
        return self.facts.get("signature")

    @property
    def bytes(self) -> int:
        """The entry's size on the disk, without its manifest."""
        return sum(int(file["size"]) for file in self.facts["files"].values())

    def verify(self, poll: Callable[[], object] | None = None) -> None:
        """Read all of the entry and compare it with its checksums.

        Args:
            poll: Called in short intervals. An exception that it raises ends the reading.

        Raises:
            Damaged: They differ, or a file cannot be read.
        """
        for name, expected in self.facts["files"].items():
            try:
                found = checksum(str(self.folder / name), poll)
            except (OSError, Error) as error:
                raise Damaged(f"{name} cannot be read: {error}") from error
            if found != expected["checksum"]:
                raise Damaged(f"{name} does not have the checksum that it was written with")

    def close(self) -> None:
        """Allow others to remove it. Files that are already open or mapped stay readable."""
        self._close()

    def __repr__(self) -> str:
        return f"<Entry of {self.facts['model'] or 'a model in memory'} in {self.folder}>"


def _close(lock: FileIO | None) -> None:
    if lock is not None:
        lock.close()


def write(
    folder: Path,
    key: CacheKey,
    weights: _core.WeightList,
    own_bytes: int,
    refused: Sequence[str],
    more: Mapping[str, Any],
) -> Entry:
    """Write the manifest of an entry whose other files lie in ``folder``.

    Args:
        folder: Where.
        key: The entry's key.
        weights: The shared weights; their files are the model's, or lie in ``folder``.
        own_bytes: Bytes of the tensors that only the entry has.
        refused: Names of weights that are not shared because ONNX Runtime does not take them.
        more: Further facts for the list of the cache.

    Raises:
        Damaged: A file of ``weights`` is neither the model's, as it was when the key was made, nor the entry's.
        OSError: It cannot be written.
    """
    files = {
        path.name: {"size": path.stat().st_size, "checksum": checksum(str(path))}
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST
    }
    facts = {
        **more,
        "format": FORMAT,
        "key": key.digest,
        "made_of": key.facts,
        "model": key.model,
        "files": files,
        "weights": {
            "files": [_describe_file(folder, key, file) for file in weights.sources],
            "weights": [[getattr(weight, field) for field in _WEIGHT] for weight in weights.weights],
            "left_out": [[one.name, one.reason] for one in weights.left_out],
        },
        "own_bytes": own_bytes,
        "refused": list(refused),
    }
    text = json.dumps({"checksum": _digest(facts), **facts}, indent=1)
    # Not synchronized: after a crash of the machine the checksums show which data did not reach the disk.
    with open(folder / MANIFEST, "w", encoding="utf-8", opener=_core.open_nofollow) as file:
        file.write(text)
    return Entry(folder, facts, key, None)


def open_entry(folder: Path, key: CacheKey, *, verify: bool) -> Entry | None:
    """Open the entry for ``key`` in ``folder``; None if there is none, or if somebody removes it.

    Args:
        folder: The entry's folder.
        key: The expected key.
        verify: Compare its files with their checksums, and not only with their sizes.

    Raises:
        Damaged: The entry differs from what was written, or was made from other files.
    """
    manifest = folder / MANIFEST
    try:
        lock = _open_manifest(folder)
    except FileNotFoundError:
        if folder.is_dir():
            raise Damaged(f"there is no {MANIFEST}") from None
        return None
    except (NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error.strerror}") from error
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
        if not _hold(lock, manifest):
            return None
        try:
            check_private(folder)
            facts = _read(lock)
            _check(folder, facts, key)
            entry = Entry(folder, facts, key, lock)
        except Damaged:
            raise
        except Exception as error:  # any damaged entry can be made again
            raise Damaged(f"{MANIFEST} cannot be used: {error!r}") from error
        stack.pop_all()
    if verify:
        try:
            entry.verify()
        except BaseException:
            entry.close()
            raise
    with contextlib.suppress(OSError):  # a cache that others fill
        os.utime(lock.fileno())
    return entry


def _hold(lock: FileIO, manifest: Path) -> bool:
    """Mark the entry as in use; False if it is being removed, or was replaced in the meantime."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    try:
        return os.path.samestat(os.fstat(lock.fileno()), manifest.stat())
    except OSError:
        return False


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the content of the manifest in ``folder``.

    Raises:
        Damaged: There is no manifest, or it differs from what was written.
    """
    try:
        manifest = _open_manifest(folder)
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error.strerror}") from error
    with manifest:
        return _read(manifest)


def _open_manifest(folder: Path) -> FileIO:
    return open(folder / MANIFEST, "rb", buffering=0, opener=_core.open_nofollow)


def _read(manifest: FileIO) -> dict[str, Any]:
    if not stat.S_ISREG(os.fstat(manifest.fileno()).st_mode):
        raise Damaged(f"{MANIFEST} is not a regular file")
    try:
        text = b""
        while len(text) <= _MAX_MANIFEST_BYTES and (part := manifest.read(_MAX_MANIFEST_BYTES + 1)):
            text += part
        if len(text) > _MAX_MANIFEST_BYTES:
            raise Damaged(f"{MANIFEST} has more than {_MAX_MANIFEST_BYTES} bytes")
        facts = json.loads(text)
        as_written = isinstance(facts, dict) and facts.pop("checksum", None) == _digest(facts)
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Damaged(f"{MANIFEST} is no JSON: {error}") from error
    if not isinstance(facts, dict) or not as_written:
        raise Damaged(f"{MANIFEST} does not have the checksum that it was written with")
    if facts.get("format") != FORMAT:
        raise Damaged(f"{MANIFEST} has the format {facts.get('format')!r}, and this release reads {FORMAT}")
    for name, kind in _FIELDS.items():
        if not isinstance(facts.get(name), kind):
            raise Damaged(f"{MANIFEST} has no valid {name!r}")
    return facts


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _check(folder: Path, facts: Mapping[str, Any], key: CacheKey) -> None:
    if facts["key"] != key.digest:
        raise Damaged("it was made of another model, or for other options")
    if PLACEHOLDER not in facts["files"] or MODEL not in facts["files"]:
        raise Damaged("it is incomplete")
    with os.scandir(folder) as found:
        sizes = {file.name: file.stat().st_size for file in found if file.is_file(follow_symlinks=False)}
    for name, expected in facts["files"].items():
        if name not in sizes:
            raise Damaged(f"{name} is missing")
        if sizes[name] != expected["size"] or not isinstance(expected["checksum"], str):
            raise Damaged(f"{name} has {sizes[name]} bytes instead of {expected['size']}")
    for file in facts["weights"]["files"]:
        if "own" in file:
            if file["own"] not in facts["files"]:
                raise Damaged(f"its weights lie in {file['own']!r}, which is none of its files")
        elif file["source"] not in {source.identity for source in key.sources}:
            raise Damaged(f"it was made of another file {file['source']}")
    if not all(isinstance(name, str) for name in facts["refused"]):
        raise Damaged("a refused weight has no name")


def _describe_file(folder: Path, key: CacheKey, file: _core.Source) -> dict[str, str]:
    path = Path(file.name)
    if path.parent == folder.resolve():
        return {"own": path.name}
    if file in key.sources:
        return {"source": file.identity}
    if any(file.name == source.name for source in key.sources):
        raise Damaged(f"the file {file.name} was changed while the model was optimized")
    raise Damaged(f"the optimized model has weights in {file.name}, which is no file of the model")


def _weight_list(folder: Path, facts: Mapping[str, Any], key: CacheKey) -> _core.WeightList:
    sources = {source.identity: source for source in key.sources}
    return _core.WeightList(
        # The entry's own files moved with its folder.
        [
            _core.file_source(str(folder / file["own"])) if "own" in file else sources[file["source"]]
            for file in facts["files"]
        ],
        [_core.Weight(**dict(zip(_WEIGHT, fields, strict=True))) for fields in facts["weights"]],
        [_core.LeftOut(*pair) for pair in facts["left_out"]],
    )


def checksum(path: str, poll: Callable[[], object] | None = None) -> str:
    """Compute a checksum of the file's bytes. Ctrl-C ends it in the main thread.

    Args:
        path: The file.
        poll: Called in short intervals. An exception that it raises ends the computation.

    Raises:
        Error: The file cannot be read.
    """
    return f"{_core.file_checksum(path, poll):016x}"
