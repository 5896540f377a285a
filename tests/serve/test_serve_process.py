"""`ortmulti serve`: a process, its sockets, its limits and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.serve.asgi import tensors_of
from tests.serve.server import (
    ASKED,
    SIMPLE,
    Server,
    asked,
    infer,
    make_certificate,
    receive_all,
    rpc_of,
    serving,
)
from tests.support import onnx_models
from tests.support.pools import ENDLESS, HANG, endless_feed
from tests.support.processes import child_environment

grpc = pytest.importorskip("grpc")
messages = pytest.importorskip("benchmarks.messages")
message = messages.message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    (path / "simple.onnx").write_bytes(SIMPLE)
    (path / "endless.onnx").write_bytes(ENDLESS)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    settings = folder.parent / "server.toml"
    settings.write_text(
        "limits = { receive = 0.3, header = 4000, body = 100000 }\n"
        f"[models.simple]\npath = '{folder}/simple.onnx'\nversion = 7\n"
    )
    with serving(settings, "--model-control", "explicit") as running:
        yield running


def test_both_protocols_are_answered(server: Server) -> None:
    assert json.loads(infer(server)[1])["outputs"][0]["data"] == [-1, 2]
    assert server.rpc("ServerLive").live
    assert server.rpc("ServerReady").ready
    assert server.rpc("ServerMetadata").name == "ortmulti"
    assert server.rpc("ModelReady", message("ModelReadyRequest")(name="simple", version="7")).ready
    described = server.rpc("ModelMetadata", message("ModelMetadataRequest")(name="simple"))
    assert [(one.name, one.datatype, list(one.shape)) for one in described.inputs] == [("x", "FP32", [-1])]
    assert server.rpc("ModelConfig", message("ModelConfigRequest")(name="simple")).config.output[0].data_type == 11
    request = asked("simple", "8", x=np.array([1, -2], np.float32))
    answer = server.rpc("ModelInfer", request)
    assert (answer.id, answer.model_version) == ("8", "7")
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), [-1, 2])
    del request.raw_input_contents[:]
    request.inputs[0].contents.fp32_contents.extend([3, 4])
    request.parameters["timeout"].int64_param = 5_000_000
    assert server.rpc("ModelInfer", request).raw_output_contents[0] == np.array([-3, -4], np.float32).tobytes()
    stats = server.rpc("ModelStatistics", message("ModelStatisticsRequest")(name="simple")).model_stats[0]
    assert stats.inference_count >= 3
    assert [one.name for one in server.rpc("RepositoryIndex").models] == ["simple"]


def test_the_last_bits_of_an_answer_are_those_of_its_numbers(tmp_path: Path) -> None:
    """onnxruntime multiplies the elements in an order that depends on where they lie."""
    product = "(float[n] few, float[m] x) => (float[n] z, float[1] y) { z = Neg(few) y = ReduceProd(x) }"
    (tmp_path / "product.onnx").write_bytes(onnx_models.parsed(product).SerializeToString())
    feed = {"few": np.ones(3, np.float32), "x": np.random.default_rng(0).uniform(0.9, 1.1, 999).astype(np.float32)}
    tensors = tensors_of(feed)
    raw = [tensor | {"parameters": {"binary_data_size": 4 * len(tensor.pop("data"))}} for tensor in tensors_of(feed)]
    binary = b"".join(value.tobytes() for value in feed.values())
    found = set()
    with serving(tmp_path) as server:
        for length in range(65):
            more = {"id": "a" * length, "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
            head = json.dumps({"inputs": raw, **more}).encode()
            for body, json_bytes in (
                (head + binary, len(head)),
                (json.dumps({"inputs": tensors, **more}).encode(), None),
            ):
                headers = {} if json_bytes is None else {"inference-header-content-length": str(json_bytes)}
                status, answer = server.ask("/v2/models/product/infer", body, **headers)
                assert status == 200
                found.add(answer[-4:])
            found.add(server.rpc("ModelInfer", asked("product", "a" * length, **feed)).raw_output_contents[1])
    assert len(found) == 1


def test_a_stream_answers_each_request(server: Server) -> None:
    requests = map(asked, ("simple", "nothing", "simple"))
    with grpc.insecure_channel(server.grpc) as channel:
        first, wrong, last = rpc_of(channel, "ModelStreamInfer")(requests, timeout=HANG)
    assert (first.error_message, last.error_message) == ("", "")
    assert first.infer_response.raw_output_contents == last.infer_response.raw_output_contents
    assert wrong.error_message == "Request for unknown model: 'nothing' is not found"


def test_wrong_requests_have_their_codes(server: Server) -> None:
    request = asked(x=np.ones(2, np.float32))
    for raw, code, text in (
        ([b"1234"], "INVALID_ARGUMENT", "input byte size mismatch for input 'x' for model 'simple'. Expected 8, got 4"),
        ([b"1234", b"5"], "INVALID_ARGUMENT", "2 raw_input_contents were sent for 1 inputs"),
        ([], "INVALID_ARGUMENT", "which is 2 values, and its data are 0"),
    ):
        del request.raw_input_contents[:]
        request.raw_input_contents.extend(raw)
        with pytest.raises(grpc.RpcError) as caught:
            server.rpc("ModelInfer", request)
        assert (caught.value.code().name, text in caught.value.details()) == (code, True), caught.value.details()
    request.raw_input_contents.append(bytes(8))
    for _ in range(2):
        request.outputs.add(name="y")
    with pytest.raises(grpc.RpcError, match="output 'y' is requested more than once") as caught:
        server.rpc("ModelInfer", request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    request.model_name = "x"
    with pytest.raises(grpc.RpcError) as caught:
        server.rpc("ModelInfer", request)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    request.model_name = "simple"
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    with pytest.raises(grpc.RpcError) as caught:
        server.rpc("ModelInfer", request)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_models_are_loaded_and_unloaded(server: Server) -> None:
    assert server.ask("/v2/repository/models/simple/unload", b"")[0] == 200
    assert infer(server)[0] == 503
    server.rpc("RepositoryModelLoad", message("RepositoryModelLoadRequest")(model_name="simple"))
    assert infer(server)[0] == 200
    for name in ("x", "../simple", "%2e%2e%2fsimple"):
        assert server.ask(f"/v2/repository/models/{name}/load", b"")[0] == 404


def test_answers_are_counted_by_protocol_and_code(folder: Path, tmp_path: Path) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text("limits = { receive = 0.3, header = 4000 }")
    with serving(settings, folder / "simple.onnx") as server:
        assert infer(server)[0] == infer(server)[0] == 200
        assert server.ask("/v2/models/simple/infer", b"{}")[0] == 400
        for sent in (b"no HTTP\r\n\r\n", b"GET /v2 HTTP/1.1\r\nx: " + b"a" * 5000, b"GET /v2 HTTP/1.1\r\n"):
            with server.socket() as client:
                client.sendall(sent)
                receive_all(client)
        with server.socket() as client:  # the body is missing: 408 alone, though the application had begun
            client.sendall(b"POST /v2/models/simple/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
            receive_all(client)
        server.rpc("ModelInfer", asked())
        with pytest.raises(grpc.RpcError):
            server.rpc("ModelInfer", asked("x"))
        with grpc.insecure_channel(server.grpc) as channel:
            assert len(list(rpc_of(channel, "ModelStreamInfer")(map(asked, ("simple", "x")), timeout=HANG))) == 2
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=HANG)
        page = server.ask("/metrics")[1].decode()
    found = re.findall(r'ortmulti_serve_answers_total{protocol="(\w+)",code="(\w+)"} (\d+)', page)
    assert {(protocol, code): int(count) for protocol, code, count in found} == {
        ("http", "200"): 2,
        ("http", "400"): 2,
        ("http", "408"): 2,
        ("http", "431"): 1,
        ("grpc", "OK"): 4,  # those of a stream are answers, whatever they say
        ("grpc", "NOT_FOUND"): 1,
    }


def accepts(server: Server) -> bool:
    try:
        server.socket().close()
    except ConnectionError:
        return False
    return True


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v2 HTTP/1.1\r\nx: " + b"a" * 5000 + b"\r\n\r\n", b"HTTP/1.1 431"),
        (b"GET /v2 HTTP/1.1\r\n" + b"a: b\r\n" * 2000 + b"\r\n", b"HTTP/1.1 431"),
        (b"GET /v2 HTTP/1.1\r\nx: " + b"a" * 5000, b"HTTP/1.1 431"),
        (b"GET /v2 HTTP/1.1\r\nx: ", b"HTTP/1.1 408"),
        (b"POST /v2/models/simple/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\nab", b"HTTP/1.1 408"),
        (b"POST /v2/models/simple/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n", b"HTTP/1.1 413"),
        (b"\x16\x03\x01 no HTTP\r\n\r\n", b"HTTP/1.1 400"),
    ],
)
def test_a_connection_has_limits(server: Server, sent: bytes, status: bytes) -> None:
    with server.socket() as client:
        client.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert receive_all(client)[: len(status)] == status
    assert infer(server)[0] == 200


def test_a_body_without_a_length_has_a_limit(server: Server) -> None:
    with server.socket() as client:
        client.sendall(b"POST /v2/models/simple/infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                client.sendall(b"2710\r\n" + bytes(10_000) + b"\r\n")
        with contextlib.suppress(ConnectionError):
            assert receive_all(client)[:12] == b"HTTP/1.1 413"
    assert infer(server)[0] == 200


def test_a_load_takes_the_newest_version_and_its_configuration(tmp_path: Path) -> None:
    def add(version: str, model: bytes, config: str) -> None:
        (tmp_path / "m" / version).mkdir(parents=True)
        (tmp_path / "m" / version / "model.onnx").write_bytes(model)
        (tmp_path / "m/config.pbtxt").write_text(config)

    add("1", SIMPLE, "max_batch_size: 8 dynamic_batching {}")
    with serving(tmp_path, "--model-control", "explicit") as server:
        assert json.loads(server.ask("/v2/models/m/config")[1])["max_batch_size"] == 8
        add("2", SIMPLE, "max_batch_size: 4 dynamic_batching {}")
        assert server.ask("/v2/repository/models/m/load", b"")[0] == 200
        assert json.loads(server.ask("/v2/models/m")[1])["versions"] == ["2"]
        assert json.loads(server.ask("/v2/models/m/config")[1])["max_batch_size"] == 4
        add("3", b"nothing", "")
        status, answer = server.ask("/v2/repository/models/m/load", b"")
        assert (status, b"this is not an ONNX model" in answer) == (400, True)
        assert str(tmp_path).encode() not in answer
        assert json.loads(server.ask("/v2/models/m")[1])["versions"] == ["2"]


def test_a_request_has_at_most_as_many_rows_as_its_configuration_states(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(
        onnx_models.parsed("(float[n] x, float[9] k) => (float[n] y) { y = Neg(x) }").SerializeToString()
    )
    (tmp_path / "m/config.pbtxt").write_text("max_batch_size: 4")
    text = "inference request batch-size must be <= 4 for 'm'"
    with serving(tmp_path) as server:
        for rows, request_id, status in ((4, "", 200), (5, "", 400), (5, "a", 400), (0, "", 200)):
            feed = {"x": np.ones(rows, np.float32), "k": np.ones(9, np.float32)}
            body = json.dumps({"id": request_id, "inputs": tensors_of(feed)}).encode()
            found, content = server.ask("/v2/models/m/infer", body)
            request = asked("m", request_id, **feed)
            assert found == status
            if status == 200:
                assert len(server.rpc("ModelInfer", request).raw_output_contents[0]) == 4 * rows
                continue
            assert json.loads(content)["error"] == f"[request id: {request_id or '<id_unknown>'}] {text}"
            with pytest.raises(grpc.RpcError, match=re.escape(text)) as caught:
                server.rpc("ModelInfer", request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        config = json.loads(server.ask("/v2/models/m/config")[1])
        assert (config["max_batch_size"], config["output"][0]["dims"]) == (4, [])
        [stats] = json.loads(server.ask("/v2/models/m/stats")[1])["model_stats"]
        assert (stats["inference_count"], stats["execution_count"]) == (8, 4)


SEVERAL = onnx_models.parsed(
    "(float[n, 3] x, string[n, k] s, int64[r] sizes) => (float[n, 3] y, float[] u) { y = Neg(x) u = Reshape(x, sizes) }"
).SerializeToString()


def test_a_model_is_that_of_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(SEVERAL)
    config = tmp_path / "m/config.pbtxt"
    x, y = " input { name: 'x' data_type: TYPE_FP32 dims: [%s] }", " output { name: 'y' dims: [%s] }"
    config.write_text("")
    with serving(tmp_path, "--model-control", "explicit") as server:
        for fits in (
            x % "-1, 3" + " input { name: 's', data_type: TYPE_STRING, dims: [7, -1] }" + y % "-1, -1",
            "max_batch_size: 4" + x % "3" + y % "3",
            "max_batch_size: 4 input { name: 'x' dims: [1, 3] reshape { shape: [3] } }",
            "output { name: 'u' data_type: TYPE_FP32 dims: [ 2, 3 ] }",  # a shape that the model does not state
        ):
            config.write_text(fits)
            assert server.ask("/v2/repository/models/m/load", b"") == (200, b""), fits
        for wrong, text in (
            ("input { name: 'z' }", "input 'z' is none of the model's: x, s, sizes"),
            ("output { name: 'x' }", "output 'x' is none of the model's: y, u"),
            (
                "input { name: 'x' data_type: TYPE_INT64 }",
                "input 'x' has data_type TYPE_INT64, and the model's is TYPE_FP32",
            ),
            (x % "-1, 4", "input 'x' has the dims [-1, 4], and the model's are [-1, 3]"),
            (x % "3", "input 'x' has the dims [3], and the model's are [-1, 3]"),
            ("max_batch_size: 4" + x % "-1, 3", "[-1, -1, 3] with the batch's, and the model's are [-1, 3]"),
            ("max_batch_size: 4" + y % "2", "output 'y' has the dims [-1, 2] with the batch's"),
        ):
            config.write_text(wrong)
            status, answer = server.ask("/v2/repository/models/m/load", b"")
            assert (status, text in json.loads(answer)["error"]) == (400, True), answer
            assert b"config.pbtxt of 'm': the " in answer
            assert server.ask("/v2/models/m/ready")[0] == 200  # the former one
        assert server.ask("/v2/models/m/config")[0] == 200
    with serving(tmp_path, wait="") as server:
        assert server.process.wait(HANG) == 1
        assert server.process.stderr is not None
        assert "the model 'm' was not loaded: config.pbtxt of 'm': the output 'y'" in server.process.stderr.read()


def test_what_is_received_is_answered_before_the_end(folder: Path) -> None:
    head = b"POST /v2/models/simple/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(ASKED)
    with (
        serving(folder / "simple.onnx") as server,
        server.socket() as half,
        server.socket() as body,
        server.socket() as idle,
    ):
        half.sendall(head)  # in its headers
        body.sendall(head + b"\r\n" + ASKED[:10])
        assert infer(server)[0] == 200  # so those before were read
        server.process.send_signal(signal.SIGTERM)
        assert receive_all(idle) == b""
        with pytest.raises(ConnectionError):
            server.socket()
        half.sendall(b"\r\n" + ASKED)
        body.sendall(ASKED[10:])
        for client in (half, body):
            answer = receive_all(client)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"[-1.0,2.0]" in answer
        assert server.process.wait(HANG) == 0


def test_no_request_over_grpc_that_has_arrived_is_cancelled_by_the_end(folder: Path) -> None:
    async def ask_until_the_end(server: Server) -> list[Any]:
        async with grpc.aio.insecure_channel(server.grpc, options=[("grpc.enable_retries", 0)]) as channel:
            call = rpc_of(channel, "ModelInfer")

            async def ask(answered: asyncio.Event) -> Any:
                while True:
                    try:
                        await call(asked(), timeout=HANG)
                    except grpc.aio.AioRpcError as error:
                        return error.code()
                    answered.set()

            answered = [asyncio.Event() for _ in range(16)]
            clients = [asyncio.create_task(ask(each)) for each in answered]
            await asyncio.gather(*(each.wait() for each in answered))
            server.process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*clients)

    with serving(folder / "simple.onnx") as server:
        codes = asyncio.run(asyncio.wait_for(ask_until_the_end(server), HANG))
        assert set(codes) == {grpc.StatusCode.UNAVAILABLE}  # not CANCELLED: these found no server any more
        assert server.process.wait(HANG) == 0


def test_a_stream_that_asks_nothing_does_not_hold_the_end_up(folder: Path) -> None:
    asks = threading.Event()

    def requests() -> Iterator[Any]:
        yield asked()
        asks.wait(HANG)

    with serving(folder / "simple.onnx") as server, grpc.insecure_channel(server.grpc) as channel:
        answers = rpc_of(channel, "ModelStreamInfer")(requests(), timeout=HANG)
        assert next(answers).error_message == ""
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(HANG) == 0
        asks.set()


def test_a_second_signal_ends_at_once(folder: Path) -> None:
    body = json.dumps({"inputs": tensors_of(endless_feed())}).encode()
    head = b"POST /v2/models/endless/infer HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
    head += b"content-length: %d\r\n\r\n" % len(body)
    with serving(folder / "endless.onnx") as server, server.socket() as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 100")  # so that it is being read
        client.sendall(body)
        server.process.send_signal(signal.SIGTERM)
        while accepts(server):
            pass
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(HANG) == 128 + signal.SIGTERM


def test_a_warning_of_each_run_is_logged_a_few_times(tmp_path: Path) -> None:
    warns = onnx_models.parsed("(float[n] x) => (float[1] y) { y = Neg(x) }").SerializeToString()
    (tmp_path / "simple.onnx").write_bytes(warns)
    with serving(tmp_path / "simple.onnx") as server:
        for _ in range(20):
            assert infer(server)[0] == 200
        server.process.send_signal(signal.SIGTERM)
        _, errors = server.process.communicate(timeout=HANG)
    assert errors.count("Expected shape from model") == 3


def test_nothing_needs_to_be_printed(tmp_path: Path) -> None:
    (tmp_path / "simple.onnx").write_bytes(SIMPLE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "ortmulti.cli", "serve", str(tmp_path), "--http", address, "--grpc", "off"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen([*command, "--devices", "cpu"], stdout=full, stderr=full, env=child_environment())
    try:
        server = Server(process, address, "")
        end = time.monotonic() + HANG
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError):
                if server.ask("/v2/health/ready")[0] == 200:
                    break
        assert infer(server)[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == 0
    finally:
        process.kill()
        process.wait()


def test_models_whose_load_has_not_begun_are_known(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"m{number:02}.onnx").write_bytes(SIMPLE)
    with serving(tmp_path, wait="") as server:
        found = []
        while 200 not in found:
            found.append(server.ask("/v2/models/m29/infer", ASKED)[0])
            assert {each["name"] for each in json.loads(server.ask("/v2/repository/index", b"")[1])} in (
                set(),  # as long as the folder is read
                {f"m{number:02}" for number in range(30)},
            )
        assert set(found) == {200, 503}
        assert server.ask("/v2/models/other/infer", ASKED)[0] == 404


def test_the_end_may_come_while_models_load(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number}.onnx").write_bytes(SIMPLE)
    with serving(tmp_path, wait="") as server:
        server.process.send_signal(signal.SIGTERM)
        _, errors = server.process.communicate(timeout=HANG)
        assert server.process.returncode == 0
        assert "Traceback" not in errors


def add_models_of_which_some_are_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "good.onnx").write_bytes(SIMPLE)
    (folder / "bad.onnx").write_bytes(b"nothing")
    (folder / "sequence/1").mkdir(parents=True)
    (folder / "sequence/1/model.onnx").write_bytes(SIMPLE)
    (folder / "sequence/config.pbtxt").write_text("sequence_batching {}")
    (folder / os.fsdecode(b"caf\xe9.onnx")).write_bytes(SIMPLE)


def test_models_that_do_not_load_end_the_start_and_each_is_named(tmp_path: Path) -> None:
    add_models_of_which_some_are_refused(tmp_path / "models")
    with serving(tmp_path / "models", wait="") as server:
        _, errors = server.process.communicate(timeout=HANG)
        assert server.process.returncode == 1
        assert "error: 3 models were not loaded, " in errors
        for text in (
            "the model 'bad' was not loaded: ",
            "the model 'sequence' was not loaded: config.pbtxt of 'sequence': a model with sequence_batching",
            "the model 'caf\\udce9' was not loaded: the name of the file or folder 'caf\\udce9' is not UTF-8: rename",
            "The others are served with --no-exit-on-error",
        ):
            assert text in errors


def test_the_other_models_are_served_if_wanted(tmp_path: Path) -> None:
    add_models_of_which_some_are_refused(tmp_path / "models")
    (tmp_path / "s.toml").write_text("exit_on_error = false\nmodel_control = 'explicit'")
    with serving(tmp_path / "s.toml", tmp_path / "models") as server:
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "not served, see the log: 'caf\\udce9', 'sequence', 'bad'\n"
        assert server.ask("/v2/health/ready")[0] == 200
        assert server.ask("/v2/models/good/infer", ASKED)[0] == 200
        assert server.ask("/v2/models/bad/ready")[0] == 400
        index = {one["name"]: one for one in json.loads(server.ask("/v2/repository/index", b"")[1])}
        assert index.keys() == {"good", "bad", "sequence", "caf?"}
        assert {one.name for one in server.rpc("RepositoryIndex").models} == index.keys()
        assert index["sequence"]["state"] == "UNAVAILABLE"
        assert "a model with sequence_batching is not served" in index["sequence"]["reason"]
        (tmp_path / "models/bad.onnx").write_bytes(SIMPLE)
        assert server.ask("/v2/repository/models/bad/load", b"")[0] == 200
        assert [one["state"] for one in json.loads(server.ask("/v2/repository/index", b"")[1])][:2] == [
            "READY",
            "READY",
        ]


def test_a_model_whose_rows_depend_on_each_other_is_served_joined_only_if_it_is_trusted(tmp_path: Path) -> None:
    mixes = onnx_models.parsed("(float[n, 2] x) => (float[n, 2] y) { y = Softmax<axis = 0>(x) }").SerializeToString()
    (tmp_path / "bad.onnx").write_bytes(mixes)
    (tmp_path / "trusted/1").mkdir(parents=True)
    (tmp_path / "trusted/1/model.onnx").write_bytes(mixes)
    (tmp_path / "trusted/config.pbtxt").write_text(
        "max_batch_size: 8 dynamic_batching {} parameters { key: 'trust_batching' value: { string_value: 'true' } }"
    )
    with serving(tmp_path, "--batching", "8", "--no-exit-on-error") as server:
        index = {one["name"]: one for one in json.loads(server.ask("/v2/repository/index", b"")[1])}
        assert index["trusted"]["state"] == "READY"
        assert index["bad"]["state"] == "UNAVAILABLE"
        assert index["bad"]["reason"] == (
            "the requests of 'bad' are to be joined, but output 'y' depends on the other rows: Softmax 'y' normalizes "
            "over the batch: serve it without batching, or trust it (trust = true of batching in a TOML file, or the "
            "parameter trust_batching of a config.pbtxt)"
        )


def test_an_initializer_may_be_an_optional_input_of_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "m/1/model.onnx").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx/model.onnx").write_bytes(
        onnx_models.parsed(
            "(float[n] x, float[1] w) => (float[n] y) { y = Mul(x, w) }",
            onnx.numpy_helper.from_array(np.array([3], np.float32), "w"),
        ).SerializeToString()
    )
    (tmp_path / "m/config.pbtxt").write_text(
        "input { name: 'x' dims: -1 } input { name: 'w' data_type: TYPE_FP32 dims: 1 optional: true }"
    )
    with serving(tmp_path / "m", "--name", "iris") as server:
        answer = server.ask("/v2/models/iris/infer", ASKED)[1]
        assert json.loads(answer)["outputs"][0]["data"] == [3, -6]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--http", "8000"], "an address is HOST:PORT, such as 127.0.0.1:8000, not '8000'"),
        (["--http", "off", "--grpc", "off"], "a server needs an address: give HOST:PORT"),
        (["--batching", "x"], "batching is SIZE or SIZE:MS"),
        (["--tls-key", "k.pem"], "TLS needs both"),
        (["--tls-key", "k.pem", "--tls-certificate", "c.pem"], "cannot use the certificate in c.pem: "),
        (["--token-file", "missing"], "the token's file 'missing' cannot be read"),
        (["--token-file", os.devnull], "the token in '/dev/null' is empty"),
        (["--token-file", __file__], ".py' has a blank, a line's end or a control character"),
        (["missing.onnx"], "there is no model file or folder 'missing.onnx'"),
        (["--custom-ops", "missing.so"], "the library of custom operators 'missing.so' does not exist"),
    ],
)
def test_wrong_arguments_are_told(folder: Path, arguments: Sequence[str], error: str) -> None:
    command = [sys.executable, "-m", "ortmulti.cli", "serve", str(folder / "simple.onnx"), "--devices", "cpu"]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, env=child_environment(), check=False)
    assert (ended.returncode, error in ended.stderr) == (1, True), ended.stderr


def test_an_address_that_is_taken_is_told(server: Server, folder: Path) -> None:
    command = [sys.executable, "-m", "ortmulti.cli", "serve", str(folder / "simple.onnx"), "--devices", "cpu"]
    for option, address in (("--http", server.http), ("--grpc", server.grpc)):
        other = ["--grpc", "off"] if option == "--http" else ["--http", "off"]
        ended = subprocess.run(
            [*command, option, address, *other], capture_output=True, text=True, env=child_environment(), check=False
        )
        assert ended.returncode == 1
        assert f"cannot listen on {address}" in ended.stderr


def test_tls_and_a_token(folder: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    options = ["--tls-certificate", certificate, "--tls-key", key, "--token-file", tmp_path / "token"]
    with serving(folder / "simple.onnx", *options) as server:
        context = ssl.create_default_context(cafile=certificate)
        for headers, status in (({}, 401), ({"Authorization": "Bearer secret"}, 200)):
            connection = HTTPSConnection(server.http, context=context, timeout=HANG)
            with contextlib.closing(connection):
                connection.request("GET", "/v2", headers=headers)
                assert connection.getresponse().status == status
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(server.grpc, credentials) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=HANG)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert b"ortmulti" in call(b"", timeout=HANG, metadata=(("authorization", "Bearer secret"),))
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerReady")(b"", timeout=HANG)
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=HANG) == b"\x08\x01"
            with pytest.raises(grpc.RpcError) as caught:
                check(b"\x0a\x02zz", timeout=HANG)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritons_client_is_served(server: Server, protocol: str) -> None:
    client_of = pytest.importorskip(f"tritonclient.{protocol}")
    client = client_of.InferenceServerClient(getattr(server, protocol))
    assert client.is_server_live()
    assert client.is_model_ready("simple", "7")
    assert not client.is_model_ready("other")
    tensor = client_of.InferInput("x", [3], "FP32")
    tensor.set_data_from_numpy(np.array([1, 2, 3], np.float32))
    for _ in range(2):
        result = client.infer("simple", [tensor], request_id="9", outputs=[client_of.InferRequestedOutput("y")])
        np.testing.assert_array_equal(result.as_numpy("y"), [-1, -2, -3])
    with pytest.raises(Exception, match="Request for unknown model: 'other' is not found"):
        client.infer("other", [tensor])
    index = client.get_model_repository_index()
    assert [one["name"] for one in index] == ["simple"] if protocol == "http" else index.models[0].name == "simple"
    client.unload_model("simple")
    client.load_model("simple")
    assert client.is_model_ready("simple")
    client.close()


def test_messages_are_those_of_tritons_client() -> None:
    theirs = pytest.importorskip("tritonclient.grpc").service_pb2.DESCRIPTOR

    def fields(described: Any) -> dict[str, tuple[int, int, Any]]:
        return {
            field.name: (field.number, field.type, field.message_type and fields(field.message_type))
            for field in described.fields
        }

    compared = 0
    for name in messages.ALL:
        if name in theirs.message_types_by_name:
            ours, other = fields(message(name).DESCRIPTOR), fields(theirs.message_types_by_name[name])
            _assert_part(ours, other, name)
            compared += 1
    assert compared > 25


def _assert_part(ours: dict[str, Any], theirs: dict[str, Any], where: str) -> None:
    for name, (number, kind, inner) in ours.items():
        assert theirs[name][:2] == (number, kind), f"{where}.{name}"
        if inner:
            _assert_part(inner, theirs[name][2], f"{where}.{name}")
