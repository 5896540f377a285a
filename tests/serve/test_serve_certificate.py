"""A certificate of `ortmulti serve` that is renewed while it runs."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ortmulti import _core
from ortmulti.errors import InvalidArgument
from ortmulti.serve.certificate import Certificate
from ortmulti.serve.limits import Limits
from tests.serve.server import make_certificate
from tests.support.pools import HANG


class Server:
    """Both ports of a server without models, and its files."""

    def __init__(self, folder: Path) -> None:
        self.files = make_certificate(folder)
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.http, self.grpc = (each.getsockname() for each in sockets)
        self.certificate = Certificate(*self.files)
        self.front = _core.Front(
            http=[sockets[0].detach()],
            grpc=[sockets[1].detach()],
            limits=_core.FrontLimits(**Limits().of_core()),
            token="",
            allowed_hosts=[],
            certificate=str(self.files[0]),
            key=str(self.files[1]),
            compressed_from=1,
            long_bodies=[],
            loops=2,
            access_log=False,
            traces=False,
        )

    def look(self) -> None:
        self.certificate.look(self.front.renew_certificate)

    @staticmethod
    def connect(address: tuple[str, int]) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(socket.create_connection(address, timeout=HANG))

    def shown(self) -> set[str]:
        """The certificates that new connections of both protocols get, in PEM."""
        found = set()
        for address in (self.http, self.grpc) * 2:
            with self.connect(address) as client:
                found.add(ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True) or b""))
        return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.front.end()


def test_new_connections_have_a_renewed_certificate(server: Server, tmp_path: Path) -> None:
    first = server.files[0].read_text()
    assert server.shown() == {first}
    with contextlib.closing(server.connect(server.http)) as before:
        make_certificate(tmp_path)
        renewed = server.files[0].read_text()
        assert renewed != first
        assert server.shown() == {first}, "nobody has looked"
        server.look()
        assert server.shown() == {renewed}
        before.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert before.recv(1 << 16).startswith(b"HTTP/1.1 200"), "a connection from before goes on"


def test_a_certificate_that_cannot_be_used_keeps_the_one_before(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = server.files
    first, first_key = certificate.read_text(), key.read_text()
    (tmp_path / "other").mkdir()
    _, other_key = make_certificate(tmp_path / "other")
    caplog.set_level(logging.INFO, "ortmulti.serve")
    spoils: list[tuple[Callable[[], object], str]] = [
        (lambda: key.write_text(other_key.read_text()), "cannot use the private key in"),
        (lambda: certificate.write_text("none"), "cannot use the certificate in"),
        (certificate.unlink, "cannot use the certificate in"),
    ]
    for spoil, said in spoils:
        caplog.clear()
        spoil()
        with pytest.raises(InvalidArgument, match=said):
            server.front.renew_certificate()
        server.look()
        server.look()
        assert [said in each.message for each in caplog.records if each.levelname == "ERROR"] == [True]
        assert server.shown() == {first}
    caplog.clear()
    certificate.write_text(first)
    key.write_text(first_key)
    server.look()
    assert [each.levelname for each in caplog.records] == ["INFO"]
    assert server.shown() == {first}
