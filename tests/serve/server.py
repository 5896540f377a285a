"""A server of `ortmulti serve` in a process of its own, and what asks it."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortmulti import _core
from tests.support import onnx_models
from tests.support.pools import HANG
from tests.support.processes import child_environment

if reason := _core.why_no_http2() if hasattr(_core, "Front") else "this build has no server":
    pytest.skip(reason, allow_module_level=True)
grpc = pytest.importorskip("grpc")
message = pytest.importorskip("benchmarks.messages").message

SIMPLE = onnx_models.parsed("(float[n] x) => (float[n] y) { y = Neg(x) }").SerializeToString()
ASKED = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, -2]}]}).encode()


def rpc_of(channel: Any, name: str) -> Any:
    """This call over a channel of grpc or grpc.aio."""
    streams = name == "ModelStreamInfer"
    return (channel.stream_stream if streams else channel.unary_unary)(
        f"/inference.GRPCInferenceService/{name}",
        request_serializer=message("ModelInferRequest" if streams else f"{name}Request").SerializeToString,
        response_deserializer=message(f"{name}Response").FromString,
    )


def asked(model: str = "simple", request_id: str = "", **feed: np.ndarray) -> Any:
    """A request over gRPC with these arrays of float32; none: 5 as x."""
    request = message("ModelInferRequest")(model_name=model, id=request_id)
    for name, value in (feed or {"x": np.array([5], np.float32)}).items():
        request.inputs.add(name=name, datatype="FP32", shape=value.shape)
        request.raw_input_contents.append(value.tobytes())
    return request


@dataclass
class Server:
    process: subprocess.Popen[str]
    http: str
    grpc: str

    def connect(self) -> HTTPConnection:
        return HTTPConnection(self.http, timeout=HANG)

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = self.connect()
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def socket(self) -> socket.socket:
        host, _, port = self.http.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=HANG)

    def rpc(self, name: str, request: Any = None, **metadata: str) -> Any:
        with grpc.insecure_channel(self.grpc) as channel:
            sent = request or message(f"{name}Request")()
            return rpc_of(channel, name)(sent, timeout=HANG, metadata=tuple(metadata.items()))


@contextlib.contextmanager
def serving(*arguments: str | Path, wait: str = "ready") -> Iterator[Server]:
    command = [sys.executable, "-m", "ortmulti.cli", "serve", *map(str, arguments), "--devices", "cpu"]
    addresses = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, *addresses], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment()
    )
    try:
        assert process.stdout is not None
        found = re.match(r"listening: HTTP (\S+), gRPC (\S+)", process.stdout.readline())
        assert found, process.communicate()[1]
        if wait:
            assert process.stdout.readline().startswith(wait), process.communicate()[1]
        yield Server(process, found[1], found[2])
    finally:
        process.kill()
        process.communicate()


def infer(server: Server) -> tuple[int, bytes]:
    return server.ask("/v2/models/simple/infer", ASKED)


def receive_all(client: socket.socket) -> bytes:
    received = b""
    while data := client.recv(1 << 16):
        received += data
    return received


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for 127.0.0.1, as files."""
    x509 = pytest.importorskip("cryptography.x509")
    import datetime
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "certificate.pem", folder / "key.pem"
