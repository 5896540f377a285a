"""The cache of optimized models: what is found, what is not, what is removed and what is said."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import pytest

import ortmulti
from ortmulti import _core
from ortmulti.cache import entries as cache_module
from ortmulti.cache.entries import Cache, parse_size
from ortmulti.cache.entry import Damaged, Entry
from ortmulti.cache.key import CacheKey
from tests.support.cached_models import add_endless_file, fill, flip, key, left, rewrite, store, write_model
from tests.support.processes import check_child, check_children, child_environment, files, nothing_leaks
from tests.support.weight_lists import fields, weight_list


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def made_of(tmp_path: Path) -> CacheKey:
    return key(write_model(tmp_path / "model")[0])


@pytest.fixture(autouse=True)
def _said_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_said", set())


def found(cache: Cache, made_of: CacheKey, **arguments: bool) -> Entry:
    entry = cache.find(made_of, **arguments)
    assert entry is not None
    return entry


def test_what_was_published_is_found(cache: Cache, made_of: CacheKey) -> None:
    assert cache.find(made_of) is None
    with nothing_leaks():
        with cache.stage(made_of) as staged:
            fill(staged)
            assert cache.find(made_of) is None
            with staged.publish() as published:
                assert published.folder.parent == cache.folder / "entries"
        with found(cache, made_of) as entry:
            assert Path(entry.model_path).read_bytes().startswith(b"graph of")
            assert entry.refused == ("weight1",)
            assert (entry.facts["note"], entry.facts["own_bytes"]) == (1, 7000)
            data, own = entry.weights.sources
            assert data == made_of.sources[-1]
            assert own == _core.file_source(str(entry.folder / "weights.bin"))
            weights = [fields(weight) for weight in entry.weights.weights]
            assert weights == [("weight0", 1, [32, 32], 0, 0, 4096), ("new", 1, [4], 1, 256, 16)]
            assert [(one.name, one.reason) for one in entry.weights.left_out] == [("small", "too small")]
    assert left(cache.folder / "staging") == []


def test_a_staged_entry_that_was_given_up_leaves_nothing(cache: Cache, made_of: CacheKey) -> None:
    def give_up() -> None:
        with cache.stage(made_of) as staged:
            fill(staged)
            staged.saved.parent.mkdir()
            staged.saved.write_bytes(b"half")
            raise ZeroDivisionError

    with nothing_leaks():
        with pytest.raises(ZeroDivisionError):
            give_up()
        with cache.stage(made_of):
            pass
    assert left(cache.folder) == []
    assert cache.find(made_of) is None


def test_staged_entries_of_living_processes_stay(cache: Cache, made_of: CacheKey) -> None:
    with cache.stage(made_of) as one, cache.stage(made_of) as other:
        fill(one)
        fill(other)
        cache.clear()
        with cache.stage(made_of):
            assert (one.folder / "manifest.json").exists()
            assert (other.folder / "manifest.json").exists()


def test_the_first_of_two_staged_entries_wins(cache: Cache, made_of: CacheKey) -> None:
    with cache.stage(made_of) as one, cache.stage(made_of) as other:
        fill(one, b"one" * 100)
        fill(other, b"other" * 100)
        with other.publish(), one.publish() as entry:
            assert (entry.folder / "weights.bin").read_bytes() == b"other" * 100
    assert len(cache.entries()) == 1


def test_a_changed_data_file_is_not_found_even_with_the_old_key(tmp_path: Path, cache: Cache) -> None:
    model, data = write_model(tmp_path / "model")
    before = key(model)
    store(cache, before)
    data.write_bytes(data.read_bytes())
    assert cache.find(before) is None
    assert cache.find(key(model)) is None


def test_a_data_file_that_changes_meanwhile_is_noticed(tmp_path: Path, cache: Cache) -> None:
    model, data = write_model(tmp_path / "model")
    with cache.stage(key(model)) as staged:
        data.write_bytes(data.read_bytes())
        with pytest.raises(ortmulti.NotOptimizable, match=f"{data.name} was changed"):
            fill(staged)
    with cache.stage(key(model)) as staged:
        other = tmp_path / "other"
        other.write_bytes(bytes(4))
        foreign = weight_list(other, [("w", 1, [1], 0, 0, 4)])
        with pytest.raises(ortmulti.NotOptimizable, match="other, which is no file of the model"):
            staged.finish(foreign, 0)


def _link(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(f"../{path.name}")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


Damage: TypeAlias = Callable[[Path], object]
DAMAGES: dict[str, Damage] = {
    "truncate": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "flip": flip,
    "empty": lambda path: path.write_bytes(b""),
    "remove": Path.unlink,
    "link": _link,
    "fifo": _fifo,
    "folder": _folder,
}
DAMAGED = [
    *(
        pytest.param(name, damage, id=f"{how} {name}")
        for name in ("manifest.json", "model.onnx", "weights.bin")
        for how, damage in DAMAGES.items()
    ),
    ("shared", Path.unlink),
    ("shared", lambda path: path.write_bytes(b"zeros")),
    *(
        ("manifest.json", lambda path, text=text: path.write_bytes(text))
        for text in (*(b'{"format": 0}', b"[" * 100_000, b"1" * 5000, b"\xff", b" " * (65 << 20), b'{"a": "\\ud800"}'),)
    ),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGED)
def test_a_damaged_entry_is_removed_and_made_anew(
    cache: Cache, made_of: CacheKey, name: str, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    folder = store(cache, made_of)
    damage(folder / name)
    if name == "manifest.json":
        assert [stored.facts for stored in cache.entries()] == [None]
    with caplog.at_level(logging.WARNING, "ortmulti"), nothing_leaks():
        assert cache.find(made_of, verify=True) is None
    assert [record.name for record in caplog.records] == ["ortmulti"]
    assert "is damaged and will be made again" in caplog.text
    assert not folder.exists()
    with cache.stage(made_of) as staged:
        fill(staged)
        damage(store(cache, made_of) / name)
        with staged.publish() as entry:  # replaces what was damaged meanwhile
            entry.verify()
            assert entry.folder == folder
    with found(cache, made_of) as entry:
        assert (entry.folder / "weights.bin").stat().st_size == 7000


FIELDS = ("format", "key", "made_of", "model", "files", "weights", "own_bytes", "refused")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, 7.5, {"a": 1}, [["a"]], "missing"])
def test_a_manifest_with_a_wrong_field_is_damaged(cache: Cache, made_of: CacheKey, field: str, value: object) -> None:
    folder = store(cache, made_of)
    rewrite(folder, lambda facts: facts.pop(field) if value == "missing" else facts.update({field: value}))
    entry = cache.find(made_of)
    if entry is not None:
        entry.close()
        assert (field, value) in [("made_of", {"a": 1}), ("model", "missing")]
    assert (entry is None) != folder.exists()


OWN = {"own": "weights.bin"}
WRONG_FACTS: list[tuple[str, object]] = [
    *(
        ("files", [OWN, file])
        for file in (
            *({"own": name} for name in ("../../../private", "/etc/passwd", "manifest.json", "..")),
            *({"source": source} for source in (-1, "/etc/passwd", ["/etc/passwd", 1, 2, 3])),
            {},
        )
    ),
    *(
        ("weights", [weight])
        for weight in (
            ["w", 8, [32], 0, 0, 1024],
            ["w", 1, [32, 33], 0, 0, 4096],
            ["w", 1, [-32, -32], 0, 0, 4096],
            ["w", 1, [32, 32], 0, 8192, 4096],
            ["w", 1, [32, 32], 0, 2**64 - 4096, 4096],
            ["w", 1, [32, 32], 2, 0, 4096],
            ["w", 1, [32, 32], -1, 0, 4096],
            ["a\0b", 1, [32, 32], 0, 0, 4096],
            ["w", 1],
        )
    ),
    ("left_out", [["w"]]),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("weights", {field: value}) for field, value in WRONG_FACTS),
        *(
            ("files", {name: {"size": 8192, "checksum": ""}})
            for name in ("../../../private", "/etc/passwd", "..", "a\0b", "")
        ),
    ],
)
def test_what_a_manifest_names_lies_within_the_files_of_the_entry_and_the_model(
    tmp_path: Path, cache: Cache, made_of: CacheKey, field: str, value: dict[str, object]
) -> None:
    (tmp_path / "private").write_bytes(bytes(8192))
    folder = store(cache, made_of)
    rewrite(folder, lambda facts: facts[field].update(value))
    assert cache.find(made_of) is None
    assert not folder.exists()


def test_a_file_that_cannot_be_read_is_damage(cache: Cache, made_of: CacheKey) -> None:
    folder = store(cache, made_of)
    with found(cache, made_of) as entry:
        (folder / "weights.bin").unlink()
        (folder / "weights.bin").mkdir()  # reading it is an error of the system
        with pytest.raises(Damaged, match=r"weights\.bin cannot be read") as raised:
            entry.verify()
        cache.remove(made_of, raised.value)
    assert not folder.exists()


def test_the_cache_is_not_locked_while_an_entry_is_read(cache: Cache, made_of: CacheKey) -> None:
    add_endless_file(store(cache, made_of))
    code = """
        import sys
        from pathlib import Path
        from ortmulti.cache.entries import Cache
        from ortmulti.cache.entry import Damaged
        from tests.support.cached_models import key
        Cache(Path(sys.argv[1])).remove(key(Path(sys.argv[2])), Damaged("for the test"))
        """
    command = [sys.executable, "-c", textwrap.dedent(code), str(cache.folder), made_of.model]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=child_environment()) as child:
        try:
            while not any(path.endswith("endless") for path in files(child.pid)):
                assert child.poll() is None
                os.sched_yield()
            with cache.stage(made_of) as staged:
                assert staged.folder.is_relative_to(cache.folder)
        finally:
            child.kill()


def test_every_bit_of_a_manifest_counts(tmp_path: Path, cache: Cache, made_of: CacheKey) -> None:
    """A flipped one is noticed, or changes nothing that is read from it."""
    folder = store(cache, made_of)
    with found(cache, made_of) as entry:
        facts, files = entry.facts, entry.weights.sources
    whole = shutil.copytree(folder, tmp_path / "whole")
    text = (whole / "manifest.json").read_bytes()
    noticed = 0
    for place in range(0, len(text), 7):
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        values = bytearray(text)
        values[place] ^= 1 << place % 8
        (folder / "manifest.json").write_bytes(values)
        flipped = cache.find(made_of, verify=False)
        if flipped is None:
            noticed += 1
            continue
        with flipped:
            assert (flipped.facts, flipped.weights.sources) == (facts, files)
    assert noticed > len(text) / 7 / 3


def test_without_verifying_only_the_sizes_are_looked_at(cache: Cache, made_of: CacheKey) -> None:
    folder = store(cache, made_of)
    flip(folder / "weights.bin")
    with found(cache, made_of, verify=False) as entry:
        with pytest.raises(Damaged, match=r"weights\.bin does not have the checksum") as raised:
            entry.verify()
        cache.remove(made_of, raised.value)
    assert not folder.exists()


def test_removing_leaves_what_is_whole_by_then(cache: Cache, made_of: CacheKey) -> None:
    folder = store(cache, made_of)
    cache.remove(made_of, Damaged("seen by a process that was slower"))
    assert folder.exists()


def test_removing_leaves_what_another_process_makes_anew_meanwhile(
    cache: Cache, made_of: CacheKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store(cache, made_of) / "model.onnx").unlink()
    locked = cache._scratch.locked

    def locked_late() -> AbstractContextManager[None]:
        store(Cache(cache.folder), made_of)
        return locked()

    monkeypatch.setattr(cache._scratch, "locked", locked_late)
    cache.remove(made_of, Damaged("seen by both"))
    found(cache, made_of).close()


def test_the_least_recently_used_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit=35_000)
    keys = [key(write_model(tmp_path / str(number), number)[0]) for number in range(5)]
    for made_of in keys[:3]:
        store(cache, made_of, bytes(8000))
    found(cache, keys[0]).close()
    used = {stored.folder.name: stored.last_used for stored in cache.entries()}
    assert used[keys[0].digest] == max(used.values())
    store(cache, keys[3], bytes(8000))
    assert {stored.folder.name for stored in cache.entries()} == {keys[n].digest for n in (0, 2, 3)}
    with found(cache, keys[2]), found(cache, keys[0]):  # in use: they stay
        store(cache, keys[4], bytes(8000))
        assert {stored.folder.name for stored in cache.entries()} == {keys[n].digest for n in (0, 2, 4)}
    assert sum(stored.bytes for stored in cache.entries()) <= cache.limit
    assert left(cache.folder / "staging") == []


def test_what_is_larger_than_the_cache_is_used_and_not_kept(
    tmp_path: Path, made_of: CacheKey, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path / "cache", limit=5000)
    with cache.stage(made_of) as staged:
        fill(staged)
        entry = staged.publish()
        assert entry.folder == staged.folder
        entry.verify()
    assert "larger than the cache may be" in caplog.text
    assert left(cache.folder) == []


def test_the_list_shows_what_there_is(tmp_path: Path, cache: Cache) -> None:
    assert cache.entries() == []
    model, _ = write_model(tmp_path / "model")
    folder = store(cache, key(model))
    [stored] = cache.entries()
    assert (stored.folder, stored.model) == (folder, str(model))
    assert stored.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert stored.facts is not None
    assert stored.facts["own_bytes"] == 7000
    (folder / "manifest.json").write_text("{}")
    assert cache.entries()[0].facts is None


def test_clearing_keeps_what_is_being_loaded(tmp_path: Path, cache: Cache) -> None:
    assert cache.clear() == cache_module.Cleared(0, 0, 0)
    keys = [key(write_model(tmp_path / str(number), number)[0]) for number in range(3)]
    folders = [store(cache, made_of) for made_of in keys]
    (folders[2] / "manifest.json").unlink()
    size = sum(path.stat().st_size for folder in folders[1:] for path in folder.iterdir())
    with found(cache, keys[0]):
        assert cache.clear() == cache_module.Cleared(2, size, 1)
    assert [stored.folder for stored in cache.entries()] == folders[:1]
    assert cache.clear().entries == 1
    assert left(cache.folder) == []


def test_one_that_is_open_outlives_a_move(cache: Cache, made_of: CacheKey) -> None:
    """An entry that somebody just moves away is not found."""
    folder = store(cache, made_of)
    folder.rename(folder.with_name("away"))
    assert cache.find(made_of) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20GB", 20 * 10**9),
        ("1.5 GiB", 3 << 29),
        ("0", 0),
        ("7", 7),
        ("10k", 10_000),
        ("2 mb", 2 * 10**6),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1", "1 XB", "1,5 GB", "much"])
def test_what_is_no_size_is_an_error(text: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match="ORTMULTI_CACHE_SIZE is a size such as 20GB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("variables", "folder", "limit"),
    [
        ({"ORTMULTI_CACHE": "/here", "ORTMULTI_CACHE_SIZE": "1MB"}, "/here", 10**6),
        ({"ORTMULTI_CACHE": "~/own", "XDG_CACHE_HOME": "/other"}, "/home/someone/own", 20 * 10**9),
        ({"ORTMULTI_CACHE": "", "XDG_CACHE_HOME": "/other"}, "/other/ortmulti", 20 * 10**9),
        ({"XDG_CACHE_HOME": ""}, "/home/someone/.cache/ortmulti", 20 * 10**9),
        ({}, "/home/someone/.cache/ortmulti", 20 * 10**9),
    ],
)
def test_the_environment_says_where_and_how_large(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str, limit: int
) -> None:
    for name in ("ORTMULTI_CACHE", "ORTMULTI_CACHE_SIZE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**variables, "HOME": "/home/someone"}.items():
        monkeypatch.setenv(name, value)
    assert (str(Cache.default().folder), Cache.default().limit) == (folder, limit)


# --- Where it cannot be written ---------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert left(folder) == []


@pytest.mark.parametrize("place", ["file", "file/cache", "/proc/none/cache"])
def test_an_unwritable_cache_is_said_once_and_done_without(
    tmp_path: Path, made_of: CacheKey, place: str, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    for _ in range(3):
        cache = Cache(tmp_path / place)
        assert cache.find(made_of) is None
        with nothing_leaks(), cache.stage(made_of) as staged:
            assert staged.folder.is_relative_to(temporary)
            fill(staged)
            entry = staged.publish()
            entry.verify()
            assert Path(entry.weights.sources[1].name).read_bytes() == b"weights" * 1000
        assert not staged.folder.exists()
    assert [record.name for record in caplog.records] == ["ortmulti"]
    assert "is not used: it cannot be written" in caplog.text
    assert cache.entries() == []


def test_a_cache_that_root_fills_is_read(tmp_path: Path, made_of: CacheKey) -> None:
    """As another user, who may read it."""
    cache = Cache(tmp_path / "cache")
    store(cache, made_of)
    for path in cache.folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    printed = check_child(
        """
        import logging, os, sys
        from pathlib import Path
        from ortmulti.cache.entries import Cache
        from tests.support.cached_models import fill, key
        logging.disable()
        cache, model = Cache(Path(sys.argv[1])), Path(sys.argv[2])
        assert cache.find(key(model)) is not None
        if os.getuid() == 0:
            os.setuid(65534)
        else:
            for path in [cache.folder, *cache.folder.rglob("*")]:
                path.chmod(0o555)
        with cache.find(key(model)) as found:
            print(len(found.weights.weights))
        (cache.folder / "entries").stat()
        with cache.stage(key(model)) as staged:
            print(staged.folder.is_relative_to(cache.folder))
        """,
        _open_to_others(cache.folder),
        made_of.model,
        environment={"TMPDIR": str(_open_to_others(tmp_path / "tmp", writable=True))},
    )
    assert printed.split() == ["2", "False"]


def _open_to_others(folder: Path, *, writable: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777 if writable else 0o755)
    for parent in folder.parents:
        if parent.is_relative_to(Path(os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp"))) and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    return folder


def test_the_temporary_folder_is_the_users_alone(tmp_path: Path, made_of: CacheKey, temporary: Path) -> None:
    (temporary / f"ortmulti-{os.getuid()}").symlink_to("nowhere")  # by another user, who knows older releases
    (tmp_path / "file").touch()
    with Cache(tmp_path / "file").stage(made_of) as staged:
        assert staged.folder.parent == temporary
        assert staged.folder.stat().st_mode & 0o777 == 0o700
    assert not staged.folder.exists()


@pytest.mark.parametrize("mask", [0o022, 0])
def test_what_is_in_the_cache_is_the_users_alone(cache: Cache, made_of: CacheKey, mask: int) -> None:
    before = os.umask(mask)
    try:
        store(cache, made_of)
        with cache.stage(made_of) as staged:
            modes = {path: path.stat().st_mode & 0o777 for path in (cache.folder, *cache.folder.rglob("*"))}
            assert staged.folder in modes
    finally:
        os.umask(before)
    ours = {path: mode for path, mode in modes.items() if path.is_dir() or path.name.endswith(("lock", ".json"))}
    assert ours == {path: 0o700 if path.is_dir() else 0o600 for path in ours}


def test_a_link_in_place_of_the_lock_is_not_followed(cache: Cache, made_of: CacheKey, tmp_path: Path) -> None:
    store(cache, made_of)
    linked = tmp_path / "linked"
    linked.write_text("kept")
    (cache.folder / "lock").unlink()
    (cache.folder / "lock").symlink_to(linked)
    with cache.stage(made_of) as staged:
        assert not staged.folder.is_relative_to(cache.folder)
    assert linked.read_text() == "kept"


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")


@pytest.mark.parametrize("place", [".", "entries", "staging"])
@pytest.mark.parametrize("how", ["group", "others", pytest.param("owner", marks=as_root)])
def test_a_cache_that_others_can_change_is_not_used(
    cache: Cache, made_of: CacheKey, place: str, how: str, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store(cache, made_of)
    if how == "owner":
        os.chown(cache.folder / place, 12345, -1)
    else:
        (cache.folder / place).chmod(0o720 if how == "group" else 0o703)
    before = left(cache.folder)
    with nothing_leaks():
        for _ in range(2):
            entry = cache.find(made_of)
            assert (entry is None) == (place != "staging")
            if entry is not None:
                entry.close()
            with cache.stage(made_of) as staged:
                fill(staged)
                staged.publish().close()
                if place != "entries":
                    assert staged.folder.is_relative_to(temporary)
    assert left(cache.folder) == before
    [record] = caplog.records
    assert ("user 12345 owns" if how == "owner" else "run chmod go-w on it") in record.getMessage()


@pytest.mark.parametrize("how", ["others", pytest.param("owner", marks=as_root)])
def test_an_entry_that_others_can_change_is_made_anew(cache: Cache, made_of: CacheKey, how: str) -> None:
    folder = store(cache, made_of)
    if how == "owner":
        os.chown(folder, 12345, -1)
    else:
        folder.chmod(0o777)
    assert cache.find(made_of) is None
    store(cache, made_of)
    found(cache, made_of).close()


# --- Several at once --------------------------------------------------------------------------------------------------


def test_threads_fill_find_clear_and_bound_it_at_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit=40_000)
    keys = [key(write_model(tmp_path / str(number), number)[0]) for number in range(6)]
    barrier = threading.Barrier(6)

    def work(number: int) -> int:
        barrier.wait()
        hits = 0
        for turn in range(30):
            made_of = keys[(number + turn) % len(keys)]
            entry = cache.find(made_of)
            if entry is None:
                with cache.stage(made_of) as staged:
                    fill(staged, made_of.digest.encode() * 250)
                    entry = staged.publish()
                    check(entry, made_of)
            else:
                hits += 1
                check(entry, made_of)
            if number == 0 and turn % 10 == 0:
                cache.clear()
        return hits

    def check(entry: Entry, made_of: CacheKey) -> None:
        with entry:
            assert (entry.folder / "weights.bin").read_bytes() == made_of.digest.encode() * 250

    with nothing_leaks(), ThreadPoolExecutor(6) as pool:
        hits = sum(pool.map(work, range(6)))
    assert hits > 0
    assert sum(stored.bytes for stored in cache.entries()) <= cache.limit + 20_000
    assert left(cache.folder / "staging") == []


def test_processes_fill_it_at_once(tmp_path: Path, made_of: CacheKey) -> None:
    code = """
        import sys
        from pathlib import Path
        from ortmulti.cache.entries import Cache
        from tests.support.cached_models import fill, key
        cache, model = Cache(Path(sys.argv[1])), Path(sys.argv[2])
        print("ready", flush=True)
        sys.stdin.readline()
        for turn in range(20):
            entry = cache.find(key(model))
            if entry is None:
                with cache.stage(key(model)) as staged:
                    fill(staged)
                    entry = staged.publish()
            with entry:
                entry.verify()
            if turn % 5 == int(sys.argv[3]):
                cache.clear()
    """
    check_children(code, *([tmp_path / "cache", made_of.model, number] for number in range(4)))
    assert left(tmp_path / "cache" / "staging") == []
