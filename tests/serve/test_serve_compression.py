"""Compressed requests and answers of `ortmulti serve`, which the core hands to Python."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from typing import Any

import numpy as np
import pytest

from ortmulti.serve.compression import COMPRESSED_FROM
from ortmulti.serve.rpc import Rpc
from tests.serve.server import SIMPLE, Server, asked, rpc_of, serving
from tests.support.pools import HANG

grpc = pytest.importorskip("grpc")
message = pytest.importorskip("benchmarks.messages").message

CODINGS = [grpc.Compression.Gzip, grpc.Compression.Deflate]
MOST = 400_000
# What compresses well, and is larger than anything that is compressed at all.
FLOATS = np.zeros(30_000, np.float32)
FLOATS[::7] = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "simple.onnx").write_bytes(SIMPLE)
    settings = folder / "server.toml"
    settings.write_text(f"limits = {{ body = {MOST} }}\n[models.simple]\npath = '{folder}/simple.onnx'\n")
    with serving(settings) as running:
        yield running


@pytest.mark.parametrize("coding", CODINGS)
def test_compressed_messages_are_answered(server: Server, coding: Any) -> None:
    with grpc.insecure_channel(server.grpc, compression=coding) as channel:
        answer = rpc_of(channel, "ModelInfer")(asked(x=FLOATS), timeout=HANG)
        np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), -FLOATS)
        answers = list(
            rpc_of(channel, "ModelStreamInfer")(iter([asked(x=FLOATS), asked(), asked(x=FLOATS)]), timeout=HANG)
        )
        assert [len(each.infer_response.raw_output_contents[0]) for each in answers] == [120_000, 4, 120_000]
        # Such a name is compressed, too.
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\xac\x02" + b"z" * 300, timeout=HANG)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as caught:
            rpc_of(channel, "ModelMetadata")(message("ModelMetadataRequest")(name="z" * 300), timeout=HANG)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("coding", CODINGS)
def test_a_message_has_a_limit_decompressed(server: Server, coding: Any) -> None:
    with grpc.insecure_channel(server.grpc, compression=coding) as channel:
        call = rpc_of(channel, "ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(asked(x=np.zeros(MOST // 4, np.float32)), timeout=HANG)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"the request's body is larger than {MOST} bytes" in caught.value.details()
        assert len(call(asked(x=FLOATS), timeout=HANG).raw_output_contents[0]) == FLOATS.nbytes


def ask(server: Server, accepted: str, floats: np.ndarray, *, binary: bool = False) -> tuple[HTTPResponse, bytes]:
    data = floats.tobytes()
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": list(floats.shape),
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": binary}}).encode()
    headers = {"inference-header-content-length": str(len(head)), "accept-encoding": accepted}
    connection = server.connect()
    connection.request("POST", "/v2/models/simple/infer", head + data, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200, content
    return answer, content


@pytest.mark.parametrize("binary", [False, True])
def test_large_answers_are_compressed_where_clients_accept_it(server: Server, binary: bool) -> None:
    plain, content = ask(server, "identity", FLOATS, binary=binary)
    assert len(content) > COMPRESSED_FROM
    codings: list[tuple[str, str, Callable[[bytes], bytes]]] = [
        ("gzip", "gzip", gzip.decompress),
        ("deflate;q=0.5", "deflate", zlib.decompress),
    ]
    several = "br;q=1, deflate, gzip"
    if not binary:
        codings.append((several, "deflate", zlib.decompress))
    for accepted, coding, expand in codings:
        answer, compressed = ask(server, accepted, FLOATS, binary=binary)
        assert answer.headers["content-encoding"] == coding
        assert expand(compressed) == content
        assert len(compressed) < len(content) / 5
        for name in ("content-type", "inference-header-content-length"):
            assert answer.headers[name] == plain.headers[name]
    for accepted in ("", "*", "br", "gzip;q=0", *([several, "gzip, deflate"] if binary else [])):
        answer, same = ask(server, accepted, FLOATS, binary=binary)
        assert (answer.headers["content-encoding"], same) == (None, content), accepted
    answer, _ = ask(server, "gzip", FLOATS[:10], binary=binary)
    assert answer.headers["content-encoding"] is None


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_tritons_clients_compress(server: Server, coding: str) -> None:
    for protocol, options in [
        ("http", {"request_compression_algorithm": coding, "response_compression_algorithm": coding}),
        ("http", {"response_compression_algorithm": coding}),
        ("grpc", {"compression_algorithm": coding}),
    ]:
        client_of = pytest.importorskip(f"tritonclient.{protocol}")
        client = client_of.InferenceServerClient(getattr(server, protocol))
        tensor = client_of.InferInput("x", [FLOATS.size], "FP32")
        tensor.set_data_from_numpy(FLOATS)
        np.testing.assert_array_equal(client.infer("simple", [tensor], **options).as_numpy("y"), -FLOATS)
        client.close()


def test_unknown_methods_are_told_before_their_messages_end(server: Server) -> None:
    answered = threading.Event()

    def messages() -> Iterator[bytes]:  # of a client that goes on, as those that list methods do
        yield b""
        answered.wait(HANG)

    with grpc.insecure_channel(server.grpc) as channel:
        for path in (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.health.v1.Health/Watch",
            "/inference.GRPCInferenceService/Other",
        ):
            answers = channel.stream_stream(path)(messages(), timeout=HANG)
            with pytest.raises(grpc.RpcError) as caught:
                next(answers)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert f"there is no method '{path}'" in caught.value.details()
    answered.set()


def test_every_method_of_the_service_has_a_path(server: Server) -> None:
    service: Any = None
    with grpc.insecure_channel(server.grpc) as channel:
        for name in Rpc(service).calls:
            call = rpc_of(channel, name).future(message(f"{name}Request")(), timeout=HANG)
            assert "there is no method" not in (call.details() or ""), name
