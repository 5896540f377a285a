"""Entries of a cache of optimized models, without ONNX Runtime: what the cache does with their files is the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortmulti import Model, _core
from ortmulti.cache import entry as _entry
from ortmulti.cache.entries import Cache, StagedEntry
from ortmulti.cache.entry import Entry
from ortmulti.cache.key import CacheKey
from ortmulti.optimized.key import key_of
from tests.support import onnx_models

CPU = [("CPUExecutionProvider", {})]


def write_model(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """A model with external data; both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return onnx_models.write_external(folder, onnx_models.matmul_proto(32, 2, seed))


def key(model: Path, **arguments: object) -> CacheKey:
    return key_of(Model.of(model), CPU, **arguments)


def fill(staged: StagedEntry, own: bytes = b"weights" * 1000) -> Entry:
    """Writes an entry into a staged entry: the model's first weight in its file, another in weights.bin."""
    (staged.folder / "model.onnx").write_bytes(b"graph of " + staged.key.digest.encode())
    (staged.folder / "weights.bin").write_bytes(own)
    (staged.folder / "shared").touch()
    files = [staged.key.sources[-1], _core.file_source(str(staged.folder / "weights.bin"))]
    weights = [_core.Weight("weight0", 1, [32, 32], 0, 0, 4096), _core.Weight("new", 1, [4], 1, 256, 16)]
    listed = _core.WeightList(files, weights, [_core.LeftOut("small", "too small")])
    return staged.finish(listed, len(own), ["weight1"], {"note": 1})


def store(cache: Cache, key: CacheKey, own: bytes = b"weights" * 1000) -> Path:
    """Publishes such an entry; its folder."""
    with cache.stage(key) as staged:
        fill(staged, own)
        with staged.publish() as entry:
            return entry.folder


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes an entry's manifest; its checksum is right again."""
    manifest = folder / "manifest.json"
    facts = json.loads(manifest.read_text())
    del facts["checksum"]
    change(facts)
    manifest.write_text(json.dumps({"checksum": _entry._digest(facts), **facts}))


def write_anew(path: Path, content: bytes) -> None:
    """Writes over the beginning of a file, which keeps its size, inode and time of modification."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # a file system's clock is coarse
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip(path: Path) -> None:
    """Changes one bit in the middle of a file."""
    values = bytearray(path.read_bytes())
    values[len(values) // 2] ^= 4
    path.write_bytes(values)


def add_endless_file(folder: Path) -> None:
    """Adds a file to an entry that takes hours to read."""
    size = 1 << 42
    (folder / "endless").touch()
    os.truncate(folder / "endless", size)
    rewrite(folder, lambda facts: facts["files"].update(endless={"size": size, "checksum": "0" * 16}))


def left(folder: Path) -> list[str]:
    """Every file below ``folder`` but the lock and the folders themselves."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "lock")
