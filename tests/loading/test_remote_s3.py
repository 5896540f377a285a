"""Models in a store with S3's interface: SeaweedFS, as its package has it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti.remote import file
from tests.support import creations, onnx_models

obstore = pytest.importorskip("obstore")

SIZE = 1024
X = np.random.default_rng(1).standard_normal((3, SIZE), dtype=np.float32)
USERS = {
    "identities": [
        {
            "name": "reader",
            "credentials": [{"accessKey": "READER", "secretKey": "READERSECRET"}],
            "actions": ["Read:open", "List:open", "Read:kept", "List:kept"],
        },
        {
            "name": "admin",
            "credentials": [{"accessKey": "ADMIN", "secretKey": "ADMINSECRET"}],
            "actions": ["Admin", "Read", "Write", "List"],
        },
    ]
}


def free_ports(count: int) -> list[int]:
    """Ports that are free, as those are that are 10,000 higher: SeaweedFS takes these for gRPC."""
    found: list[int] = []
    held = []
    try:
        while len(found) < count:
            first, second = socket.socket(), socket.socket()
            held += [first, second]
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            if port < 50_000:
                try:
                    second.bind(("127.0.0.1", port + 10_000))
                except OSError:
                    continue
                found.append(port)
    finally:
        for each in held:
            each.close()
    return found


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    weed = shutil.which("weed")
    if weed is None:
        pytest.skip("SeaweedFS is not installed")
    folder = tmp_path_factory.mktemp("weed")
    users = folder / "users.json"
    users.write_text(json.dumps(USERS))
    (folder / "data").mkdir()
    master, volume, filer, s3 = free_ports(4)
    command = [weed, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}"]
    command += [f"-s3.config={users}", "-volume.max=100", "-master.volumeSizeLimitMB=64"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as server:
        try:
            url, end = f"http://127.0.0.1:{s3}", time.monotonic() + 45
            for bucket in ("open", "kept", "closed"):
                while not made(url, bucket):
                    assert server.poll() is None, (folder / "log").read_text()[-500:]
                    assert time.monotonic() < end, (folder / "log").read_text()[-500:]
            yield url
        finally:
            server.kill()


def store_of(url: str, bucket: str, user: str = "ADMIN") -> Any:
    return obstore.store.S3Store(
        bucket,
        endpoint=url,
        access_key_id=user,
        secret_access_key=f"{user}SECRET",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def made(url: str, bucket: str) -> bool:
    """Whether the bucket is there, and takes objects."""
    try:
        signed = obstore.sign(store_of(url, bucket), "PUT", "", timedelta(minutes=1))
        urllib.request.urlopen(urllib.request.Request(signed, method="PUT"), timeout=5).close()
    except OSError:  # it is there, or not ready
        pass
    try:
        obstore.put(store_of(url, bucket), "probe", b"1")
    except Exception:
        return False
    return True


@pytest.fixture
def model(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of a model that is in each bucket."""
    creations.own_cache(tmp_path, monkeypatch)
    for name, value in {
        "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "READER",
        "AWS_SECRET_ACCESS_KEY": "READERSECRET",
    }.items():
        monkeypatch.setenv(name, value)
    files = list(onnx_models.write_external(tmp_path, onnx_models.matmul_proto(SIZE, 5)))
    for bucket in ("open", "closed"):
        for each in files:
            obstore.put(store_of(endpoint, bucket), f"some folder/{each.name}", each.read_bytes())
    return files


def answer_of(model: object) -> np.ndarray:
    with ortmulti.load(model, "cpu", 2) as pool:
        answers = [session.run(None, {"x": X})[0] for session in pool.sessions]
    np.testing.assert_array_equal(*answers)
    return np.asarray(answers[0])


def test_a_model_of_a_bucket_is_that_of_the_file(model: list[Path], endpoint: str) -> None:
    expected = answer_of(model[0])
    np.testing.assert_array_equal(answer_of("s3://open/some folder/model.onnx"), expected)
    given = ortmulti.Model("some folder/model.onnx", store=store_of(endpoint, "open", "READER"))
    np.testing.assert_array_equal(answer_of(given), expected)
    np.testing.assert_array_equal(answer_of(ortmulti.Model("s3://open/some folder/model.onnx", keep="disk")), expected)


def test_a_model_that_is_put_anew_is_another_one(model: list[Path], endpoint: str) -> None:
    for factor in (1, 2):
        body = (np.fromfile(model[1], np.float32) * factor).tobytes()
        obstore.put(store_of(endpoint, "kept"), "m/model.data", body)
        obstore.put(store_of(endpoint, "kept"), "m/model.onnx", model[0].read_bytes())
        pool = ortmulti.load(ortmulti.Model("s3://kept/m/model.onnx", keep="disk"), "cpu")
        model[1].write_bytes(body)
        np.testing.assert_array_equal(pool.run(None, {"x": X})[0], answer_of(model[0]))
        if factor == 1:
            pool.close()
    pool.sleep(level="session")
    obstore.put(store_of(endpoint, "kept"), "m/model.data", model[1].read_bytes()[::-1])
    with pool, pytest.raises(ortmulti.WeightsError, match="it was changed or replaced"):
        pool.wake()


@pytest.mark.parametrize(
    ("url", "variables", "message"),
    [
        ("s3://open/none.onnx", {}, r"there is no such object \(NoSuchKey\)"),
        (
            "s3://none/model.onnx",
            {"AWS_ACCESS_KEY_ID": "ADMIN", "AWS_SECRET_ACCESS_KEY": "ADMINSECRET"},
            "NoSuchBucket",
        ),
        ("s3://closed/some folder/model.onnx", {}, r"permission denied: the store answers 403 \(AccessDenied\)"),
        ("s3://open/some folder/model.onnx", {"AWS_SECRET_ACCESS_KEY": "WRONGSECRET"}, "SignatureDoesNotMatch"),
        ("s3://open/some folder/model.onnx", {"AWS_ACCESS_KEY_ID": "NOBODY"}, "InvalidAccessKeyId"),
        ("s3://open/some folder/model.onnx", {"AWS_ENDPOINT": "https://127.0.0.1:1"}, "cannot connect"),
        ("s3://open/some folder/model.onnx", {"AWS_ALLOW_HTTP": "false"}, "AWS_ALLOW_HTTP=true"),
    ],
)
@pytest.mark.usefixtures("model")
def test_what_the_store_refuses_is_one_clear_error(
    url: str, variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_FIRST_PATIENCE", 0.2)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    errors = {"cannot connect": ortmulti.WeightsError, "AWS_ALLOW_HTTP=true": ortmulti.InvalidArgument}
    with pytest.raises(errors.get(message, ortmulti.NoSuchFile), match=message) as raised:
        ortmulti.load(url, "cpu")
    assert url in str(raised.value)
    assert "SECRET" not in str(raised.value)
