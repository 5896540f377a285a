"""Stores that lie about sizes, hosts that lack file descriptors, and what the error is then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ortmulti
from ortmulti.remote import RemoteFile, file, model
from ortmulti.remote.place import place_of
from tests.support.http_store import Fault, HttpStore
from tests.support.processes import check_child

pytest.importorskip("obstore")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpStore]:
    monkeypatch.setattr(file, "_FIRST_PATIENCE", 0.1)
    monkeypatch.setattr(file, "_PATIENCE", 0.1)
    with HttpStore().served() as served:
        served.put("model.onnx", bytes(1000))
        yield served


def test_a_size_that_no_memory_has_ends_no_process(store: HttpStore) -> None:
    sizes = {"a": 1 << 45, "b": 1 << 62, "c": 1 << 63}
    for name in sizes:
        store.put(name, bytes(1000))
    store.fault = lambda path, *_: Fault("whole", size=sizes[path])
    printed = check_child(
        """
        import sys, ortmulti
        from ortmulti.remote import file
        file._FIRST_PATIENCE = 0
        for name in "abc":
            try:
                ortmulti.load(f"{sys.argv[1]}/{name}", "cpu")
            except (ortmulti.OutOfMemory, ortmulti.WeightsError) as error:
                print("cannot be read: " in str(error))
        """,
        store.url,
    )
    assert printed == "True\n" * 3


def test_no_more_is_taken_than_was_asked_for(store: HttpStore) -> None:
    store.fault = lambda *_: Fault("endless", size=1 << 30)
    with pytest.raises(ortmulti.WeightsError, match=r"bytes or more came instead of 1$"):
        RemoteFile(f"{store.url}/model.onnx")
    assert store.sent < 256 << 20  # what was under way


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (1 << 59, ortmulti.OutOfMemory, r"no memory for \d+ MB of 'http.*model.onnx'"),
        (
            1 << 63,
            ortmulti.WeightsError,
            r"model.onnx' cannot be read: the store says that it has 9223372036854775808 bytes",
        ),
        ((1 << 64) - 1, ortmulti.WeightsError, "18446744073709551615 bytes"),
    ],
)
def test_a_size_that_no_object_has_is_an_error(
    size: int, error: type[Exception], message: str, store: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "RANGE", 1000)
    store.fault = lambda *_: Fault("announce", size=size)
    with pytest.raises(error, match=message):
        ortmulti.load(f"{store.url}/model.onnx", "cpu")


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault("status", 403, text="RequestTimeTooSkewed"), ortmulti.WeightsError, "the clock of this machine differs"),
        (Fault("status", 400, text="AuthorizationHeaderMalformed"), ortmulti.InvalidArgument, "set AWS_REGION"),
        (Fault("status", 301, text="PermanentRedirect"), ortmulti.InvalidArgument, "set AWS_REGION"),
        (Fault("status", 410), ortmulti.NoSuchFile, "there is no such object"),
        (Fault("redirect", text="/model.onnx"), ortmulti.WeightsError, "redirected again and again"),
        (Fault("drop"), ortmulti.WeightsError, "the connection broke off"),
        (Fault("cut"), ortmulti.WeightsError, "the connection broke off"),
        (Fault("other"), ortmulti.WeightsError, "another range than was asked for"),
    ],
)
def test_each_failure_has_its_class_and_its_reason(
    fault: Fault, error: type[Exception], message: str, store: HttpStore
) -> None:
    store.fault = lambda *_: fault
    with pytest.raises(error, match=message) as raised:
        RemoteFile.at(place_of(f"{store.url}/model.onnx"), 1000)
    assert isinstance(raised.value, FileNotFoundError) == (error is ortmulti.NoSuchFile)


@pytest.mark.parametrize("kind", ["", "whole"])
def test_an_object_without_bytes_is_named(kind: str, store: HttpStore) -> None:
    store.fault = lambda *_: Fault(kind)
    with pytest.raises(ortmulti.InvalidArgument, match="is empty: 0 bytes"):
        RemoteFile(store.put("empty", b""))


@pytest.mark.usefixtures("store")
def test_a_host_that_does_not_listen_is_no_missing_file() -> None:
    with pytest.raises(ortmulti.WeightsError, match="cannot connect"):
        RemoteFile("http://127.0.0.1:1/model.onnx")


USED_UP = """
    import os, resource, sys, ortmulti
    from ortmulti.remote import RemoteFile, file
    import obstore.store
    file._FIRST_PATIENCE = file._PATIENCE = 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def show(free, call):
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        for _ in range(free):
            os.close(held.pop())
        try:
            call()
        except (ortmulti.RuntimeException, ortmulti.WeightsError) as error:
            print("no free file descriptors" in str(error), end=" ")
        for each in held:
            os.close(each)
        print(RemoteFile(sys.argv[1]).size, flush=True)
"""


def test_too_few_descriptors_are_one_error_and_later_loads_work(store: HttpStore) -> None:
    given = """
    given = obstore.store.HTTPStore.from_url(sys.argv[2], client_options={"allow_http": True})
    for free in (0, 2, 4, 8):
        for arguments in (sys.argv[1:2], ("model.onnx", given)):
            child = os.fork()
            if not child:
                show(free, lambda: RemoteFile(*arguments))
                os._exit(0)
            os.waitpid(child, 0)
    """
    printed = check_child(USED_UP + given, f"{store.url}/model.onnx", store.url, timeout=30)
    assert printed == "True 1000\n" * 8


def test_descriptors_that_are_used_up_later_are_named(store: HttpStore) -> None:
    later = """
    opened = RemoteFile(sys.argv[1])
    show(0, lambda: opened.read_into(memoryview(bytearray(500)), 500))
    """
    assert check_child(USED_UP + later, f"{store.url}/model.onnx") == "True 1000\n"
