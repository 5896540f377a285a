"""Fuzzes the manifests of cached models: `python -m tests.fuzz.fuzz_manifest [SECONDS [SEED [CASE]]]`.

Each case changes a copy of a real entry. `open_entry` must return an entry whose weights lie within its named files, or
None, or raise Damaged. SEED and CASE repeat one case.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import ortmulti
from ortmulti.cache.entries import Cache
from ortmulti.cache.entry import MANIFEST, Damaged, Entry, _digest, open_entry
from ortmulti.cache.key import CacheKey
from ortmulti.optimized.key import key_of
from tests.fuzz import cases
from tests.support import optimized_models
from tests.support.cached_models import CPU

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 4096, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), "", ".", "..", "/", "a\0b", "\ud800", "x" * 300, "../../../private", "/etc/passwd",
    "/proc/self/mem", MANIFEST, "model.onnx", "weights.bin", "shared", "own", "source", [], [[]], {}, {"own": ".."},
    {"own": "shared"}, {"source": []}, {"size": 0, "checksum": "0"},
]  # fmt: skip


def write_changed_facts(folder: Path, random: Random) -> None:
    facts = json.loads((folder / MANIFEST).read_bytes())
    del facts["checksum"]
    cases.change(facts, VALUES, (1, 10, 500), random)
    text = json.dumps({"checksum": _digest(facts), **facts})
    (folder / MANIFEST).write_text(text, "utf-8")


def write_changed_bytes(folder: Path, random: Random) -> None:
    text = bytearray((folder / MANIFEST).read_bytes())
    for _ in range(random.choice((1, 3, 20))):
        begin = random.randrange(len(text) + 1)
        end = min(begin + random.choice((0, 1, 10, 1000)), len(text))
        new = random.choice(
            (b"", b"[" * 20_000, b"9" * 5000, b'"', b"{", b"NaN", random.randbytes(3), text[begin:end] * 2)
        )
        text[begin:end] = new
    (folder / MANIFEST).write_bytes(text)


def change_file(folder: Path, random: Random) -> None:
    """Makes one file of the entry, or its folder, an odd one."""
    path = random.choice(sorted(folder.iterdir()))
    how = random.randrange(8)
    if how == 0:
        folder.chmod(random.choice((0o777, 0o770, 0o500)))
        return
    if how == 1:
        os.truncate(path, random.choice((0, 1, path.stat().st_size + 1)))
        return
    if how == 2:
        path.rename(folder / random.choice(("other", "é", "..x")))
        return
    path.unlink()
    if how == 3:
        os.mkfifo(path)
    elif how == 4:
        path.mkdir()
    elif how == 5:
        path.symlink_to(random.choice((path.name, "shared", "/etc/passwd", "/dev/zero", "/proc/self/mem", "..")))
    elif how == 6:
        with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryDirectory(prefix="s") as short:
            listener.bind(f"{short}/s")
            Path(f"{short}/s").rename(path)


CHANGES: Sequence[Callable[[Path, Random], None]] = (
    *[write_changed_facts] * 6,
    *[write_changed_bytes] * 3,
    change_file,
)


def check(entry: Entry, key: CacheKey) -> None:
    """Asserts that what an entry says can be used."""
    own = {str(path.resolve()) for path in entry.folder.iterdir()}
    for file in entry.weights.sources:
        assert file.name in own or file in key.sources, file
        assert Path(file.name).stat().st_size == file.size, file
    for weight in entry.weights.weights:
        assert weight.name
        assert all(dimension >= 0 for dimension in weight.shape)
        assert 0 <= weight.offset <= weight.offset + weight.length <= entry.weights.sources[weight.source].size
    assert all(isinstance(name, str) for name in entry.refused)
    assert entry.bytes == sum((entry.folder / name).stat().st_size for name in entry.facts["files"])
    assert repr(entry)
    assert Path(entry.model_path).parent == entry.folder


def run(entry: Path, key: CacheKey, cache: Cache, random: Random) -> str:
    """Makes and opens one changed entry; what became of it."""
    folder = cache.folder / "entries" / key.digest
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(entry, folder)
    random.choice(CHANGES)(folder, random)
    list(cache.entries())
    try:
        opened = open_entry(folder, key, verify=random.random() < 0.5)
    except Damaged:
        return "damaged"
    if opened is None:
        return "none"
    with opened:
        check(opened, key)
    return "opened"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        cache = Cache(Path(name) / "cache")
        os.environ["ORTMULTI_CACHE"] = str(cache.folder)
        model = str(optimized_models.write(Path(name) / "model", optimized_models.with_folded_weights(), "external"))
        entry = Path(ortmulti.optimize(model, "cpu").path).rename(Path(name) / "entry")
        key = key_of(ortmulti.Model(model), CPU)
        cases.run("manifest", lambda random: run(entry, key, cache, random))


if __name__ == "__main__":
    main()
