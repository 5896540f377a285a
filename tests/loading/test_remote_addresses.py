"""Addresses of models in stores: which one is asked for, what lies beside it, and where redirects lead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import ortmulti
from ortmulti.remote import RemoteFile
from tests.support import onnx_models
from tests.support.http_store import Fault, HttpStore

obstore = pytest.importorskip("obstore")

X = np.ones((1, 64), np.float32)


@pytest.fixture
def store() -> Iterator[HttpStore]:
    with HttpStore().served() as served:
        yield served


def put_model(store: HttpStore, folder: Path, name: str, location: str, data: str) -> str:
    """Store a model whose external data has this name in the graph, and another in the store."""
    path, weights = onnx_models.write_external(folder, onnx_models.matmul_proto(64, 1))
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        next(each for each in tensor.external_data if each.key == "location").value = location
    store.put(data, weights.read_bytes())
    return store.put(name, proto.SerializeToString())


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("my%20model.onnx", "my%20model.onnx"),
        ("my model.onnx", "my%20model.onnx"),
        ("a%2Bb+c.onnx", "a%2Bb+c.onnx"),
        ("%C3%BC/ü.onnx", "%C3%BC/%C3%BC.onnx"),
        ("refs%2Fpr%2F1/m.onnx", "refs%2Fpr%2F1/m.onnx"),
        ("o/models%2fm.onnx?alt=media&t=a%2Fb+c", "o/models%2fm.onnx?alt=media&t=a%2Fb+c"),
        ("m.onnx#part", "m.onnx"),
    ],
)
def test_an_address_is_asked_for_as_it_is_given(given: str, asked: str, store: HttpStore) -> None:
    store.put(asked.partition("?")[0], b"1")
    assert RemoteFile(f"{store.url}/{given}").size == 1
    assert set(store.targets) == {f"/{asked}"}


def test_a_name_in_a_bucket_is_the_objects_own_and_not_encoded(
    store: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "ENDPOINT": store.url, "ALLOW_HTTP": "1", "REGION": "r"}
    for name, value in known.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    store.put("bucket/a%2520b/c%2520d.onnx", b"1")
    assert RemoteFile("s3://bucket/a%20b/c%20d.onnx").size == 1


@pytest.mark.parametrize(
    ("location", "data"),
    [
        ("./model.data", "a%20b/model.data"),
        ("x/../model.data", "a%20b/model.data"),
        ("./x//model.data", "a%20b/x/model.data"),
        ("w 1%20ü.data", "a%20b/w%201%2520%C3%BC.data"),
    ],
)
@pytest.mark.parametrize("query", ["", "?signature=SECRET"])
def test_external_data_is_found_as_beside_a_file(
    location: str, data: str, query: str, store: HttpStore, tmp_path: Path
) -> None:
    url = put_model(store, tmp_path, "a%20b/model.onnx", location, data)
    with ortmulti.load(url + query, "cpu") as pool:
        assert pool.run(None, {"x": X})[0].shape == (1, 64)


@pytest.mark.parametrize(
    "location", ["..", "a/../..", "./../model.data", "../b/model.data", "/model.data", "a\\b", "a\nb", "."]
)
def test_external_data_that_leads_above_is_refused(location: str, store: HttpStore, tmp_path: Path) -> None:
    url = put_model(store, tmp_path, "b/model.onnx", location, "model.data")
    with pytest.raises(ortmulti.InvalidArgument, match="no name below the model's folder") as raised:
        ortmulti.load(url, "cpu")
    assert "\n" not in str(raised.value)


def test_a_name_is_shown_in_one_line(store: HttpStore) -> None:
    with pytest.raises(ortmulti.NoSuchFile, match=r"/a%0Ab\.onnx'"):
        RemoteFile(f"{store.url}/a\nb.onnx")
    with pytest.raises(ortmulti.Error, match=r"/a%0Ab%80\.onnx'") as raised:
        RemoteFile("a\nb\udc80.onnx", obstore.store.MemoryStore())
    assert "\n" not in str(raised.value)


def test_a_redirect_tells_the_other_host_nothing_of_a_signed_url(store: HttpStore, tmp_path: Path) -> None:
    put_model(store, tmp_path, "model.onnx", "model.data", "model.data")
    with HttpStore().served() as first:
        there = store.url.replace("127.0.0.1", "localhost")  # another host

        def fault(path: str, *_: object) -> Fault:
            name = path.removeprefix("moved/")
            return Fault("redirect", text=f"/moved/{path}" if name == path else f"{there}/{name}?other=1")

        first.fault = fault
        signed = f"{first.url.replace('//', '//user:PASSWORD@')}/model.onnx?signature=SECRET"
        with ortmulti.load(signed, "cpu") as pool:
            assert pool.run(None, {"x": X})[0].shape == (1, 64)
        assert all("authorization" in headers for headers in first.headers)
    assert {path for path, _, _ in store.requests} == {"model.onnx", "model.data"}
    for headers in store.headers:
        assert {"referer", "authorization", "cookie"}.isdisjoint(headers)
    assert "SECRET" not in str(store.headers) + str(store.targets)


def test_a_redirect_that_has_expired_is_followed_anew(store: HttpStore) -> None:
    url = store.put("file", bytes(range(100)))
    valid = "1"

    def fault(path: str, _: int, number: int) -> Fault | None:
        if path == "signed":
            return Fault("redirect", text=f"{url}?token={valid}")
        return None if store.targets[number].endswith(f"={valid}") else Fault("status", 403)

    store.fault = fault
    file = RemoteFile(f"{store.url}/signed?signature=SECRET")
    valid = "2"
    assert bytes(file.read_into(memoryview(bytearray(10)), 5)) == bytes(range(5, 15))
    store.fault = lambda path, *_: Fault("status", 403) if path == "file" else fault(path, 0, 0)
    with pytest.raises(ortmulti.WeightsError, match="permission denied"):
        file.read_into(memoryview(bytearray(10)), 5)


@pytest.mark.parametrize(
    ("target", "message"),
    [("/again?x=1", "redirected again and again"), ("ftp://127.0.0.1/x", "redirected from http:// to ftp://")],
)
def test_redirects_that_lead_nowhere_are_an_error(target: str, message: str, store: HttpStore) -> None:
    store.fault = lambda *_: Fault("redirect", text=target)
    with pytest.raises(ortmulti.WeightsError, match=message):
        RemoteFile(f"{store.url}/file?x=1")
