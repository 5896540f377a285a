"""Models in a store behind HTTP: a real server, a real client, and what a network does."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortmulti
from ortmulti.optimized import Cache, wait_for_entries
from ortmulti.remote import RemoteFile, concurrency, file, model, place
from ortmulti.serve.folder import Models
from tests.support import creations, fake_driver, onnx_models
from tests.support.command import invoke
from tests.support.http_store import Fault, HttpStore
from tests.support.processes import ROOT, check_child, child_environment, nothing_leaks

obstore = pytest.importorskip("obstore")

SIZE = 512
RANGE = 1 << 16
X = np.random.default_rng(1).standard_normal((3, SIZE), dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return creations.own_cache(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (file, model):
        monkeypatch.setattr(module, "RANGE", RANGE)
    monkeypatch.setattr(RemoteFile, "range_bytes", RANGE)
    monkeypatch.setattr(file, "_BACKOFF", (0.001, 0.01))


@pytest.fixture(scope="module")
def _threads_of_obstore() -> None:
    """It has threads that stay: no test is to count them as its own."""
    with HttpStore().served() as served:
        for _ in range(2):
            RemoteFile(served.put("one", b"1"))


@pytest.fixture
def store(_threads_of_obstore: None) -> Iterator[HttpStore]:
    with HttpStore().served() as served:
        yield served


class Stored:
    """A model in a store, and its answer as a file."""

    def __init__(self, store: HttpStore, folder: Path, *, inline: bool = False) -> None:
        made = onnx_models.matmul_proto(SIZE, 3)
        if inline:
            self.files = [folder / "model.onnx"]
            onnx.save(made, self.files[0])
        else:
            self.files = list(onnx_models.write_external(folder, made))
        [self.expected] = onnx_models.cpu_session(self.files[0]).run(None, {"x": X})
        for each in self.files:
            store.put(f"bucket/it/{each.name}", each.read_bytes())
        self.url = f"{store.url}/bucket/it/{self.files[0].name}"
        self.other = self.expected  # with the object that HttpStore.replaced makes
        if not inline:
            before = self.files[1].read_bytes()
            store.replaced("bucket/it/model.data")
            self.files[1].write_bytes(store.objects["bucket/it/model.data"])
            [self.other] = onnx_models.cpu_session(self.files[0]).run(None, {"x": X})
            store.replaced("bucket/it/model.data")
            self.files[1].write_bytes(before)
        self.bytes = sum(each.stat().st_size for each in self.files)

    def check(self, session: Any) -> None:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], self.expected)


@pytest.fixture
def stored(store: HttpStore, tmp_path: Path) -> Stored:
    return Stored(store, tmp_path)


def read_once(store: HttpStore) -> bool:
    """Whether each byte of each object was sent once."""
    for path, body in store.objects.items():
        ranges = sorted((begin, end) for name, begin, end in store.ranges if name == path)
        if [begin for begin, _ in ranges] != [0, *(end for _, end in ranges[:-1])] or ranges[-1][1] != len(body):
            return False
    return True


@pytest.mark.parametrize("inline", [False, True])
def test_sessions_are_those_over_the_file_and_each_byte_is_read_once(
    inline: bool, store: HttpStore, tmp_path: Path
) -> None:
    stored = Stored(store, tmp_path, inline=inline)
    with nothing_leaks(), ortmulti.load(stored.url, "cpu", 2) as pool:
        for session in pool.sessions:
            stored.check(session)
        assert pool.timeline.not_shared == []
        assert read_once(store)
        tags = [tag for _, _, tag in store.requests]
        assert tags.count(None) == len(stored.files)  # the first of each
        assert store.most_at_once > 1


def test_every_way_to_load_takes_a_url(store: HttpStore, stored: Stored) -> None:
    with ortmulti.InferenceSession(stored.url, providers=["CPUExecutionProvider"]) as session:
        stored.check(session)
    for created in ortmulti.create_sessions(stored.url, "cpu", 2):
        stored.check(created)
    with ortmulti.ModelRepository("cpu") as models:
        models.add("it", stored.url)
        np.testing.assert_array_equal(models.run("it", None, {"x": X})[0], stored.expected)
    made = ortmulti.optimize(stored.url, "cpu")
    assert made.made
    assert not ortmulti.optimize(stored.url, "cpu").made
    store.replaced("bucket/it/model.data")
    assert ortmulti.optimize(stored.url, "cpu", compare=False).made


def test_commands_and_the_server_take_a_url(stored: Stored, cache: Cache, tmp_path: Path) -> None:
    shown = invoke("inspect", stored.url, "--json")
    assert shown.returncode == 0, shown.stderr
    facts = json.loads(shown.stdout)
    assert (facts["model"], facts["external_files"]) == (stored.url, ["model.data"])
    assert facts["weights"]["bytes"] == facts["weights"]["shared_bytes"] == 3 * SIZE * SIZE * 4
    assert [one["name"] for one in facts["inputs"]] == ["x"]
    assert "bit for bit" in invoke("optimize", stored.url).stdout
    [entry] = cache.entries()
    assert entry.model == stored.url
    config = tmp_path / "serve.toml"
    config.write_text(f"[models.named]\npath = '{stored.url}?signature=SECRET'\nkeep = 'disk'\n")
    found, _ = Models([config, stored.url]).all()
    assert isinstance(found["named"].model(), ortmulti.Model)
    assert found["model"].model() == stored.url
    assert {name: one.path for name, one in found.items()} == {
        "named": f"{stored.url}?signature=SECRET",
        "model": stored.url,
    }
    with pytest.raises(ortmulti.InvalidArgument, match="two models have the name 'model', ") as raised:
        Models([f"{stored.url}?signature=SECRET", stored.url]).find("model")
    assert "SECRET" not in str(raised.value)


def test_progress_counts_the_bytes(stored: Stored) -> None:
    seen: list[ortmulti.LoadProgress] = []
    with ortmulti.load(stored.url, "cpu", loading=ortmulti.Loading(progress=seen.append)):
        pass
    data = stored.files[1].stat().st_size
    assert (seen[-1].bytes_loaded, seen[-1].bytes_total) == (data, data)


def test_a_wake_reads_again_and_an_object_that_was_changed_is_an_error(store: HttpStore, stored: Stored) -> None:
    with ortmulti.load(stored.url, "cpu") as pool:
        pool.sleep(level="session")
        stored.check(pool)
        pool.sleep(level="session")
        store.replaced("bucket/it/model.data")
        with pytest.raises(ortmulti.WeightsError, match="changed or replaced since it was opened"):
            pool.wake()


def test_an_object_that_changes_while_it_is_read_is_an_error(store: HttpStore, stored: Stored) -> None:
    store.fault = lambda path, begin, _: Fault("change") if path.endswith("data") and begin == 4 * RANGE else None
    with (
        nothing_leaks(),
        pytest.raises(ortmulti.WeightsError, match=r"data' at byte \d+ failed: it was changed"),
    ):
        ortmulti.load(stored.url, "cpu")


@pytest.mark.parametrize("tag", ['W/"{}"', None])
def test_stores_without_strong_tags(tag: str | None, store: HttpStore, stored: Stored) -> None:
    strong = store.tag
    store.tag = lambda body: tag.format(strong(body)) if tag else None
    with ortmulti.load(stored.url, "cpu") as pool:
        stored.check(pool)
    assert all(sent is None for _, _, sent in store.requests)
    if tag:
        store.fault = lambda path, begin, _: Fault("change") if path.endswith("data") and begin == RANGE else None
        with pytest.raises(ortmulti.WeightsError, match="it was changed"):
            ortmulti.load(stored.url, "cpu")
    else:  # nothing tells two such objects apart: no entry of the cache is found
        identity = RemoteFile(stored.url).identity
        assert RemoteFile(stored.url).identity != identity


def test_a_server_without_ranges(store: HttpStore, stored: Stored) -> None:
    store.fault = lambda *_: Fault("whole")
    with ortmulti.load(stored.url, "cpu", 2) as pool:
        stored.check(pool)


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (401, ortmulti.NoSuchFile, "permission denied: the store answers 401"),
        (403, ortmulti.NoSuchFile, "permission denied: the store answers 403"),
        (404, ortmulti.NoSuchFile, "there is no such object"),
        (400, ortmulti.NoSuchFile, "the store answers 400"),
        (500, ortmulti.WeightsError, "the store answers 500"),
        (503, ortmulti.WeightsError, "the store answers 503"),
    ],
)
def test_what_a_store_refuses_is_one_clear_error_without_secrets(
    status: int, error: type[Exception], message: str, store: HttpStore, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_FIRST_PATIENCE", 0.2)
    store.fault = lambda *_: Fault("status", status)
    url = stored.url.replace("http://", "http://user:PASSWORD@") + "?signature=SECRET"
    with nothing_leaks(), pytest.raises(error, match=message) as raised:
        ortmulti.load(url, "cpu")
    assert stored.url in str(raised.value)
    printed = "".join(traceback.format_exception(raised.value))
    assert "SECRET" not in printed
    assert "PASSWORD" not in printed


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:PASS#WORD@127.0.0.1:1/m.onnx", "the port is no number. Characters such as / # "),
        ("http://user:PASS/WORD@127.0.0.1:1/m.onnx", "the port is no number"),
        ("http://user:PASS?WORD@127.0.0.1:1/m.onnx", "the port is no number"),
        ("http://user:PASSWORD@[::1/m.onnx", "cannot be opened"),
        ("s3://user:PASSWORD@bucket/m.onnx", "credentials do not belong into it"),
        ("s4://user:PASSWORD@bucket/m.onnx", "it is such as s3://bucket/path/model.onnx"),
        ("s3://bucket/m.onnx?versionId=WORD", "it has no query"),
        ("s3://bucket", "it is that of a folder or a bucket"),
        ("https://host/", "it is that of a folder or a bucket"),
    ],
)
def test_a_url_that_is_wrong_is_one_error_without_its_password(url: str, message: str) -> None:
    with pytest.raises((ortmulti.InvalidArgument, ortmulti.NoSuchFile), match=message) as raised:
        ortmulti.load(url, "cpu")
    error: BaseException | None = raised.value
    while error is not None:
        assert "PASS" not in str(error)
        assert "WORD" not in str(error)
        error = error.__context__
    assert "PASS" not in raised.value.public
    with pytest.raises(ortmulti.NoSuchFile, match="a URL is a str with two slashes") as mangled:
        ortmulti.load(Path("http://user:PASSWORD@host/m.onnx"), "cpu")
    assert "PASS" not in str(mangled.value)
    with pytest.raises(ortmulti.InvalidType, match=r"store is one of obstore\.store"):
        ortmulti.Model("m.onnx", store="s3://bucket")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL"])
def test_an_endpoint_without_a_scheme_is_an_error(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "127.0.0.1:9000")
    with pytest.raises(ortmulti.InvalidArgument, match=f"{variable[:12]}.* is '127.0.0.1:9000', and needs http"):
        ortmulti.load("s3://bucket/m.onnx", "cpu")


def test_without_credentials_the_error_says_so(store: HttpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", store.url)  # a machine without a role
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with pytest.raises(ortmulti.NoSuchFile, match="no credentials were found"):
        ortmulti.load("s3://bucket/model.onnx", "cpu")


def test_a_signed_url_is_read_with_its_query_and_known_without(store: HttpStore, stored: Stored) -> None:
    signed = {f"model.{kind}": f"{store.url}/bucket/it/model.{kind}?signature=SECRET" for kind in ("onnx", "data")}
    graph = RemoteFile(signed["model.onnx"])
    content = bytes(graph.read_into(memoryview(bytearray(graph.size)), 0))
    given = ortmulti.Model(content, weights={"model.data": RemoteFile(signed["model.data"])})
    with ortmulti.load(given, "cpu") as pool:
        stored.check(pool)
    assert "SECRET" not in graph.identity + graph.name + repr(given.sources)


@pytest.mark.parametrize("name", ["../model.data", "/model.data", "a/../../model.data"])
def test_external_data_lies_below_the_folder_of_the_model(name: str, store: HttpStore, stored: Stored) -> None:
    proto = onnx.load(stored.files[0], load_external_data=False)
    for tensor in proto.graph.initializer:
        next(each for each in tensor.external_data if each.key == "location").value = name
    store.put("bucket/it/model.onnx", proto.SerializeToString())
    with pytest.raises(ortmulti.InvalidArgument, match="no name below the model's folder"):
        ortmulti.load(stored.url, "cpu")


def test_a_store_that_is_given(stored: Stored, store: HttpStore) -> None:
    given = obstore.store.HTTPStore.from_url(f"{store.url}/bucket", client_options={"allow_http": True})
    with ortmulti.load(ortmulti.Model("it/model.onnx", store=given), "cpu") as pool:
        stored.check(pool)
    with pytest.raises(ortmulti.InvalidArgument, match="with store= a model is a path in the store"):
        ortmulti.Model(stored.url, store=given)
    with pytest.raises(ortmulti.InvalidArgument, match="store= and keep= are for a URL"):
        ortmulti.Model(stored.files[0], keep="disk")
    with pytest.raises(ortmulti.InvalidArgument, match="keep is None or 'disk'"):
        ortmulti.Model(stored.url, keep="host")


def test_a_store_in_memory(stored: Stored) -> None:
    given = obstore.store.MemoryStore()
    for each in stored.files:
        obstore.put(given, f"it/{each.name}", each.read_bytes())
    with ortmulti.load(ortmulti.Model("it/model.onnx", store=given), "cpu") as pool:
        stored.check(pool)


def test_a_copy_on_the_disk_is_used_as_long_as_the_object_is_the_same(
    store: HttpStore, stored: Stored, cache: Cache
) -> None:
    def load(*, same: bool = True, copied: bool = True) -> int:
        """Bytes that were read."""
        store.ranges.clear()
        with ortmulti.load(ortmulti.Model(stored.url, keep="disk"), "cpu", 2) as pool:
            if same:
                stored.check(pool)
            noted = "the store's objects are read from copies on the disk" in [
                span.name for span in pool.timeline.spans
            ]
            assert noted == copied
        wait_for_entries()
        return sum(end - begin for _, begin, end in store.ranges)

    assert load(copied=False) == stored.bytes + 2  # a byte of each file came first
    assert load() == 2
    entries = {Path(entry.model).name: entry for entry in cache.entries()}
    assert entries.keys() == {"model.onnx", "model.data"}
    data = entries["model.data"].folder / "model.onnx"
    assert data.read_bytes() == stored.files[1].read_bytes()
    data.write_bytes(b"\0" + data.read_bytes()[1:])  # damaged
    assert load() == stored.files[1].stat().st_size + 2
    assert load() == 2
    store.put("bucket/it/model.data", stored.files[1].read_bytes()[::-1])
    load(same=False)
    assert len(cache.entries()) == 3
    gc.collect()
    assert cache.clear().entries == 3


def test_what_a_load_does_not_read_is_read_for_the_copy(store: HttpStore, stored: Stored, cache: Cache) -> None:
    proto = onnx.load(stored.files[0], load_external_data=False)
    body = stored.files[1].read_bytes() + bytes(3 * RANGE)
    store.put("bucket/it/model.data", body)
    for number, tensor in enumerate(proto.graph.initializer):
        next(each for each in tensor.external_data if each.key == "offset").value = str(number * SIZE * SIZE * 4)
    with ortmulti.load(ortmulti.Model(stored.url, keep="disk"), "cpu") as pool:
        stored.check(pool)
    wait_for_entries()
    copies = [entry.folder / "model.onnx" for entry in cache.entries()]
    assert body in [copy.read_bytes() for copy in copies]


def test_a_copy_that_the_cache_has_no_room_for(stored: Stored, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMULTI_CACHE_SIZE", "100k")
    with nothing_leaks(), ortmulti.load(ortmulti.Model(stored.url, keep="disk"), "cpu") as pool:
        stored.check(pool)
        wait_for_entries()
    assert [Path(entry.model).name for entry in cache.entries()] == ["model.onnx"]


def test_a_load_that_fails_leaves_no_copy(store: HttpStore, stored: Stored, cache: Cache) -> None:
    def fault(path: str, begin: int, _: int) -> Fault | None:
        return Fault("status", 403) if path.endswith("data") and begin > RANGE else None

    store.fault = fault
    with pytest.raises(ortmulti.WeightsError, match="permission denied") as raised:
        ortmulti.load(ortmulti.Model(stored.url, keep="disk"), "cpu")
    del raised  # its traceback has the model
    wait_for_entries()
    assert [Path(entry.model).name for entry in cache.entries()] in ([], ["model.onnx"])
    end = time.monotonic() + 30
    while list((cache.folder / "staging").iterdir()) and time.monotonic() < end:
        gc.collect()  # a thread that has failed may still have the model
    assert list((cache.folder / "staging").iterdir()) == []


KINDS = ["cut", "drop", "late", "status", "whole", "other", "change"]
SCHEDULES = int(os.environ.get("ORTMULTI_FAULTS", "30"))


def test_any_schedule_of_faults_ends_in_the_right_bits_or_one_error(
    store: HttpStore, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PATIENCE", "_FIRST_PATIENCE"):
        monkeypatch.setattr(file, name, 0.5)
    ends: Counter[str] = Counter()
    with nothing_leaks():
        for seed in range(SCHEDULES):
            before = time.monotonic()
            ends[_load_with_faults(store, stored, random.Random(seed))] += 1
            assert time.monotonic() - before < 20, f"seed {seed}"
    assert ends.keys() >= {"right", "WeightsError", "NoSuchFile"}
    print(dict(ends))


def _load_with_faults(store: HttpStore, stored: Stored, chance: random.Random) -> str:
    """How it ended."""
    rate = chance.choice([0.02, 0.1, 0.4])
    kinds = chance.sample(KINDS, chance.randint(1, len(KINDS)))
    faults: list[str] = []

    def fault(path: str, *_: object) -> Fault | None:
        kind = chance.choice(kinds)
        if chance.random() > rate or (kind == "change" and not path.endswith("data")):
            return None
        faults.append(kind)
        return Fault(kind, chance.choice([500, 503, 503, 429, 403, 416, 404]), chance.random())

    store.fault = fault
    try:
        with ortmulti.load(stored.url, "cpu") as pool:
            answer = pool.run(None, {"x": X})[0]
    except (ortmulti.WeightsError, ortmulti.NoSuchFile, ortmulti.InvalidArgument) as error:
        end, said = type(error).__name__, str(error)
    else:
        end, said = "right", ""
    if end == "right":
        assert any(np.array_equal(answer, whole) for whole in (stored.expected, stored.other)), faults
    else:
        assert faults
        assert stored.url.rpartition("/")[0] in said
        assert "SECRET" not in said
    return end


def test_a_body_that_stalls_is_asked_for_again(
    store: HttpStore, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(place._CLIENT, "read_timeout", "300ms")
    stalled = threading.Event()

    def fault(path: str, begin: int, _: int) -> Fault | None:
        if path.endswith("data") and begin == 2 * RANGE and not stalled.is_set():
            stalled.set()
            return Fault("stall")
        return None

    store.fault = fault
    with ortmulti.load(stored.url, "cpu") as pool:
        stored.check(pool)
    assert stalled.is_set()


@pytest.mark.parametrize("where", ["onnx", "data"])
def test_ctrl_c_ends_a_load_from_a_store_that_does_not_answer(where: str, store: HttpStore, stored: Stored) -> None:
    reached = threading.Event()

    def fault(path: str, begin: int, _: int) -> Fault | None:
        if path.endswith(where) and (where == "onnx" or begin > 0):
            reached.set()
            return Fault("stall")
        return None

    store.fault = fault
    code = """
import sys, time, ortmulti
ortmulti.InferenceSession
from ortmulti.remote import file, model
file.RANGE = model.RANGE = file.RemoteFile.range_bytes = 65536
try:
    ortmulti.load(sys.argv[1], "cpu")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code, stored.url],
        env=child_environment({}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reached.wait(30)
    sent = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout is not None
    assert child.stdout.readline() == "interrupted\n"
    assert time.monotonic() - sent < 30  # not after _PATIENCE
    store.released.set()
    assert child.communicate(timeout=30)[1] == ""
    assert child.returncode == 0


def test_a_server_that_loads_from_a_store_ends_at_once(store: HttpStore, stored: Stored) -> None:
    reached = threading.Event()

    def fault(path: str, *_: object) -> Fault | None:
        if path.endswith("onnx"):
            return None
        reached.set()
        return Fault("stall")

    store.fault = fault
    command = [sys.executable, "-m", "ortmulti.cli", "serve", stored.url, "--http", "127.0.0.1:0", "--grpc", "off"]
    with subprocess.Popen(command, env=child_environment({})) as server:
        try:
            assert reached.wait(30)
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == 0
        finally:
            server.kill()


def test_more_is_asked_for_at_once_while_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def limit_for(rate: Any) -> int:
        """The limit that is found where `rate` of a limit's ranges come in a second."""
        nonlocal now
        found = concurrency.Link()
        with found.place(0):  # others are always under way
            for _ in range(20_000):
                with found.place(0):
                    now += 1 / rate(found.limit)
                found.came(1)
        return found.limit

    assert limit_for(lambda limit: 10.0 * limit) >= 1024  # whatever the threads allow
    assert limit_for(lambda _: 80.0) == 8
    assert limit_for(lambda limit: 10.0 * min(limit, 32)) == 32


def test_a_store_that_is_overloaded_is_asked_less() -> None:
    found = concurrency.Link()
    for _ in range(10):
        found.refused()
    assert found.limit == 2
    with found.place(0), found.place(0):
        pass


def test_nothing_of_it_is_imported_for_a_path(stored: Stored) -> None:
    printed = check_child(
        """
        import sys, ortmulti
        ortmulti.load(sys.argv[1], "cpu").close()
        print([name for name in sys.modules if name.startswith(("obstore", "ortmulti.remote"))])
        """,
        stored.files[0],
    )
    assert printed == "[]\n"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("htps://host/model.onnx?sig=SECRET", r"'htps://host/model\.onnx'.* scheme 'htps' \(did you mean 'https'\?\)"),
        ("ftp://host/model.onnx", r"unknown scheme 'ftp': .*s3://.*https://"),
        ("file:///tmp/model.onnx", "give its path, '/tmp/model.onnx'"),
    ],
)
def test_a_url_of_an_unknown_scheme_is_refused_without_obstore_too(
    url: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ortmulti.InvalidArgument, match=hint) as raised:
        ortmulti.load(url, "cpu")
    assert "SECRET" not in str(raised.value)


def test_without_obstore_the_error_says_what_to_install() -> None:
    printed = check_child(
        """
        import sys, ortmulti
        sys.modules["obstore"] = None
        try:
            ortmulti.load("s3://bucket/model.onnx?X-Amz-Signature=SECRET", "cpu")
        except ortmulti.LibraryError as error:
            print(error)
        """
    )
    assert printed == (
        "'s3://bucket/model.onnx' is in an object store, which needs obstore: pip install 'ortmulti[remote]'\n"
    )


ON_GPUS = """
    import ctypes
    import numpy as np
    import ortmulti
    from ortmulti import _core
    from ortmulti.remote import RemoteFile, file
    from tests.support.http_store import Fault, HttpStore
    from tests.support.processes import nothing_leaks

    RemoteFile.range_bytes = 1 << 16
    content = np.random.default_rng(0).integers(0, 256, 1 << 22, np.uint8).tobytes()

    def load(store):
        weights = [_core.Weight(f"w{i}", 2, [1 << 18], 0, i << 18, 1 << 18) for i in range(16)]
        listed = _core.WeightList([RemoteFile(store.put("weights", content))], weights)
        store.ranges.clear()
        return _core.load_weights(_core.SharedWeights(listed), [0, 1])

    with HttpStore().served() as store:
        loaded = load(store)
        ranges = sorted((begin, end) for _, begin, end in store.ranges)
        print(ranges == [(at, at + (1 << 16)) for at in range(0, 1 << 22, 1 << 16)], store.most_at_once > 4)
        for each in loaded:
            for i in range(16):
                assert ctypes.string_at(each.address(i), 1 << 18) == content[i << 18 : (i + 1) << 18], i
        del loaded, each
        print(ctypes.CDLL("libcuda.so.1").live())
        with nothing_leaks():
            store.fault = lambda path, begin, number: Fault("status", 403) if begin == 40 << 16 else None
            try:
                load(store)
            except ortmulti.WeightsError as error:
                print("permission denied" in str(error))
"""


def test_a_file_is_read_once_for_all_gpus(tmp_path: Path) -> None:
    """GPUs whose memory is the host's."""
    environment = fake_driver.build(tmp_path).environment
    assert check_child(ON_GPUS, environment=environment) == "True True\n0\nTrue\n"


def test_strategies_that_need_files_download_them_in_the_comparison(stored: Stored, tmp_path: Path) -> None:
    result = tmp_path / "create.json"
    url = f"{stored.url}?signature=secret"
    options = ["--devices", "cpu", "--counts", "1", "--strategies", "sequential,shared", "--repeat", "1"]
    shown = invoke("bench", "create", url, *options, "--json", str(result))
    rows = {row["strategy"]: row for row in json.loads(result.read_text())["rows"]}
    assert 0 < rows["sequential"]["download"]["median"] < rows["sequential"]["creation"]["median"]
    assert rows["shared"]["download"] is None
    assert rows["shared"]["equal"]
    assert "secret" not in result.read_text() + shown.stdout + shown.stderr


def test_a_download_goes_on_where_a_write_was_short(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortmulti.bench.measure.download import download

    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, body, offset: write(file, body[:50_000], offset))
    folder = tmp_path / "download"
    folder.mkdir()
    assert download(stored.url, folder) == folder / "model.onnx"
    for each in stored.files:
        assert (folder / each.name).read_bytes() == each.read_bytes()


def test_no_comparison_of_a_model_that_is_not_in_the_store(store: HttpStore) -> None:
    shown = invoke("bench", "create", f"{store.url}/bucket/none.onnx?signature=secret")
    assert shown.returncode == 1
    assert "there is no such object" in shown.stderr
    assert "secret" not in shown.stderr
