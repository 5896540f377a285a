"""`ortmulti serve` and clients that mean it ill: what they cost it, and others."""

from __future__ import annotations

import contextlib
import json
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.server import ASKED, SIMPLE, Server, asked, infer, receive_all, rpc_of, serving
from tests.support import onnx_models
from tests.support.pools import HANG

grpc = pytest.importorskip("grpc")

MIB = 1 << 20
MEMORY = 64 * MIB
# n zeros.
LARGE = onnx_models.parsed("(int64[1] n) => (float[m] y) { y = ConstantOfShape(n) }").SerializeToString()
# What a process takes for other reasons while it answers, and what its allocator keeps.
SLACK = 200 * MIB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "simple.onnx").write_bytes(SIMPLE)
    (folder / "large.onnx").write_bytes(LARGE)
    settings = folder.parent / "server.toml"
    models = "".join(f"[models.{name}]\npath = '{folder}/{name}.onnx'\n" for name in ("simple", "large"))
    settings.write_text(f"limits = {{ memory = {MEMORY}, json = {MIB}, end = 2 }}\n{models}")
    with serving(settings, "--model-control", "explicit") as running:
        assert infer(running)[0] == 200
        yield running


def memory(server: Server, name: str = "VmHWM") -> int:
    """The most bytes of memory that the server ever had; VmRSS: that it has now."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


@contextlib.contextmanager
def bounded(server: Server, slack: int = SLACK) -> Iterator[None]:
    """What happens here takes the memory that clients may have, and others are served."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the most is what it has now
    before = memory(server, "VmRSS")
    yield
    assert memory(server) - before < MEMORY * 1.1 + slack
    assert server.ask("/v2/health/ready")[0] == 200


def posted(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def large(elements: int) -> bytes:
    tensor = {"name": "n", "datatype": "INT64", "shape": [1], "data": [elements]}
    return json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()


def slow_reader(server: Server) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(HANG)
    host, _, port = server.http.rpartition(":")
    client.connect((host, int(port)))
    return client


def test_answers_that_nobody_takes_have_a_budget(server: Server) -> None:
    with contextlib.ExitStack() as stack, bounded(server):
        clients = [stack.enter_context(slow_reader(server)) for _ in range(20)]
        for client in clients:
            client.sendall(posted("/v2/models/large/infer", large(4 * MIB)))
        statuses = [client.recv(12) for client in clients]
        assert sorted(set(statuses)) == [b"HTTP/1.1 200", b"HTTP/1.1 503"]
        assert statuses.count(b"HTTP/1.1 200") <= MEMORY // (16 * MIB)
    assert infer(server)[0] == 200


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def test_headers_that_are_named_by_their_number_have_a_budget(server: Server) -> None:
    def literal(name: bytes, value: bytes, first: int = 0) -> bytes:
        more, rest = b"", len(value) - 127
        while rest > 127:
            more, rest = more + bytes([rest & 127 | 128]), rest >> 7
        size = bytes([len(value)]) if len(value) < 127 else b"\x7f" + more + bytes([rest])
        return bytes([first, len(name)]) + name + size + value

    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/inference.GRPCInferenceService/ModelInfer",
        b":authority": b"x",
        b"content-type": b"application/grpc",
    }
    head = b"".join(literal(*field) for field in fields.items())
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    sent += frame(1, 4, 1, head + literal(b"a", bytes([97] * 3900), 0x40))
    sent += b"".join(frame(1, 4, stream, head + b"\xbe" * 15) for stream in range(3, 257, 2))
    host, _, port = server.grpc.rpartition(":")
    with contextlib.ExitStack() as stack, bounded(server, 110 * MIB):
        for _ in range(30):
            client = stack.enter_context(socket.create_connection((host, int(port)), timeout=HANG))
            client.sendall(sent + frame(6, 0, 0, bytes(8)))
            received = b""
            while frame(6, 1, 0, bytes(8)) not in received:  # all was read
                received += client.recv(1 << 16)
        assert server.rpc("ServerLive").live


def test_lines_without_an_end_have_a_budget(server: Server) -> None:
    with contextlib.ExitStack() as stack, bounded(server):
        for _ in range(min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)):
            client = stack.enter_context(server.socket())
            client.sendall(b"GET /v2 HTTP/1.1\r\nhost: x\r\na: " + b"b" * 60_000)
        assert server.ask("/v2")[0] in (200, 503)


def test_bodies_that_become_large_have_a_budget(server: Server) -> None:
    packed = zlib.compress(bytes(60 * MIB), 9)
    with contextlib.ExitStack() as stack, bounded(server):
        clients = [stack.enter_context(server.socket()) for _ in range(12)]
        for client in clients:
            client.sendall(posted("/v2/models/simple/infer", packed, "content-encoding: deflate"))
        statuses = {client.recv(12) for client in clients}
        assert statuses <= {b"HTTP/1.1 413", b"HTTP/1.1 503"}
    given_up = time.monotonic() + HANG
    while (status := server.ask("/v2/models/nothing/infer", bytes(60 * MIB))[0]) == 503:
        assert time.monotonic() < given_up, "not all of it was given back"
    assert status in (404, 413)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/repository/index", 413),
        ("/v2/repository/models/simple/load", 413),
        ("/v2/models/simple/infer", 413),
        ("/v2/models/nothing/infer", 404),
        ("/v2/models/simple/versions/9/infer", 404),
    ],
)
def test_json_is_read_only_where_it_is_small(server: Server, path: str, status: int) -> None:
    with bounded(server):
        assert server.ask(path, b'{"inputs":[' + b"[[]]," * (8 * MIB) + b"[]]}")[0] == status


def test_a_message_that_is_no_infer_is_small(server: Server) -> None:
    with bounded(server), grpc.insecure_channel(server.grpc) as channel:
        for name in ("RepositoryModelLoad", "ServerMetadata"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\x1a\x00" * (2 * MIB), timeout=HANG)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_compressed_requests_do_not_wait_for_loads(tmp_path: Path) -> None:
    body = zlib.compress(ASKED)
    nodes = "".join(f"v{i + 1} = Sin(v{i})\n" for i in range(4000))
    deep = onnx_models.parsed(f"(float[1] v0) => (float[1] v4000) {{ {nodes} }}").SerializeToString()
    (tmp_path / "simple.onnx").write_bytes(SIMPLE)
    with serving(tmp_path, "--model-control", "explicit") as server, contextlib.ExitStack() as stack:
        (tmp_path / "deep.onnx").write_bytes(deep)
        loads = [stack.enter_context(server.socket()) for _ in range(40)]
        for load in loads:
            load.sendall(posted("/v2/repository/models/deep/load", b""))
        packed = {"content-encoding": "deflate"}
        assert server.ask("/v2/models/simple/infer", body, **packed)[0] == 200
        loads[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            loads[-1].recv(1)


def test_the_end_comes_beside_clients_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "simple.onnx").write_bytes(SIMPLE)
    (tmp_path / "large.onnx").write_bytes(LARGE)
    settings = tmp_path / "server.toml"
    models = "".join(f"[models.{name}]\npath = '{name}.onnx'\n" for name in ("simple", "large"))
    settings.write_text(f"limits = {{ end = 1, receive = 600, send = 600, idle = 600 }}\n{models}")
    asks = threading.Event()

    def requests() -> Iterator[object]:
        yield asked()
        asks.wait(HANG)

    with serving(settings) as ending, contextlib.ExitStack() as stack:
        reader = stack.enter_context(slow_reader(ending))
        reader.sendall(posted("/v2/models/large/infer", large(8 * MIB)))
        assert reader.recv(12) == b"HTTP/1.1 200"
        halves = [stack.enter_context(ending.socket()) for _ in range(3)]
        for half, sent in zip(halves, (b"POST /v2", b"POST /v2/models/simple/infer HTTP/1.1\r\nho", b""), strict=True):
            half.sendall(sent or posted("/v2/models/simple/infer", ASKED)[:-5])
        channel = stack.enter_context(grpc.insecure_channel(ending.grpc))
        stream = rpc_of(channel, "ModelStreamInfer")(requests(), timeout=HANG)
        assert next(stream).error_message == ""
        assert infer(ending)[0] == 200
        ending.process.send_signal(signal.SIGTERM)
        assert ending.process.wait(HANG) == 0
        for half in halves:
            received = receive_all(half)
            assert received.startswith(b"HTTP/1.1 503")
            assert b"the server ends" in received
        asks.set()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", "/v2", "GET, HEAD"),
        ("PUT", "/v2/models/simple/infer", "POST"),
        ("DELETE", "/v2/models/simple", "GET, HEAD"),
        ("POST", "/v2/health/live", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_which_are_right(server: Server, method: str, path: str, allowed: str) -> None:
    connection = server.connect()
    connection.request(method, path)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    connection.close()


def test_a_path_forges_no_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "simple.onnx").write_bytes(SIMPLE)
    with serving(tmp_path, "--access-log") as server:
        for path in ("/v2/x%0Aforged", "/v2/models/x%0Aforged/infer", "/v2/models/%C3%A4%E2%80%A8forged"):
            server.ask(path)
            server.ask(path, ASKED)
        server.process.send_signal(signal.SIGTERM)
        log = server.process.communicate(timeout=HANG)[1]
    assert log.count("forged") == 6
    assert not [line for line in log.splitlines() if line.startswith("forged")]


def limited(folder: Path, soft: int, hard: int, settings: str) -> tuple[str, str]:
    """How many files a server of this folder may have open, which had these limits, and what it says of that."""
    (folder / "simple.onnx").write_bytes(SIMPLE)
    toml = folder / "server.toml"
    toml.write_text(f"{settings}\n[models.simple]\npath = 'simple.onnx'\n")
    script = f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    script += "sys.argv[0] = 'ortmulti'; runpy.run_module('ortmulti.cli', run_name='__main__')"
    command = [sys.executable, "-c", script, "serve", str(toml), "--devices", "cpu", "--http", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--grpc", "off"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening")
        assert process.stdout.readline().startswith("ready")
        limits = Path(f"/proc/{process.pid}/limits").read_text()
    finally:
        process.kill()
        said = process.communicate()[1]
    return next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3], said


def test_as_many_files_may_be_open_as_connections_need(tmp_path: Path) -> None:
    files, said = limited(tmp_path, 300, 2000, "limits = { connections = 1000 }")
    assert (files, "ulimit" in said) == ("1256", False)
    files, said = limited(tmp_path, 300, 900, "limits = { connections = 1000 }")
    assert files == "900"
    assert "limits.connections is 1000, and this process may have 900 files open" in said


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines divide all integers")
def test_integers_end_no_server(tmp_path: Path) -> None:
    """onnxruntime 1.32 divides the smallest number by -1, which ends a process on x86-64 (SIGFPE)."""
    for bits in (32, 64):
        source = f"(int{bits}[n] a, int{bits}[n] b) => (int{bits}[n] y) {{ y = Div(a, b) }}"
        (tmp_path / f"int{bits}.onnx").write_bytes(onnx_models.parsed(source).SerializeToString())
    with serving(tmp_path) as server:
        for bits in (32, 64):
            smallest = -(2 ** (bits - 1))

            def divide(a: list[int], b: list[int], bits: int = bits) -> tuple[int, bytes]:
                of = {"datatype": f"INT{bits}", "shape": [len(a)]}
                body = json.dumps({"inputs": [{"name": "a", "data": a, **of}, {"name": "b", "data": b, **of}]})
                return server.ask(f"/v2/models/int{bits}/infer", body.encode())

            for count in (1, 20):  # a run in the loop's thread or another one, and with several numbers at once
                status, answer = divide([smallest, 7] * count, [-1, -2] * count)
                assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [smallest, -3] * count)
            assert divide([smallest], [0])[0] == 500
        assert server.process.poll() is None


def test_a_tokenizer_that_panics_costs_one_answer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from tests.serve import text_exports

    folder = text_exports.embedding(tmp_path / "mini")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    # Its search gives up, which is a panic of Rust: no Exception of Python.
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps({**tokenizer, "pre_tokenizer": pattern}))
    settings = tmp_path / "server.toml"
    settings.write_text(f"limits = {{ concurrent = 1 }}\n[models.mini]\npath = '{folder}'\n")
    with serving(settings) as server:
        assert server.ask("/embed", json.dumps({"inputs": "a" * 30 + "b"}).encode())[0] in (422, 500)
        assert server.ask("/embed", json.dumps({"inputs": "a cat"}).encode())[0] == 200
