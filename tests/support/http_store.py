"""A store behind HTTP with ranges and ETags, and the faults that a network has."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Fault:
    """What happens to one answer.

    Attributes:
        kind: "cut" breaks the body off, "drop" the connection before the answer, "stall" the body until the client
            gives up, "late" waits, "status" answers `status`, "redirect" leads to `text`, "whole" answers 200 with
            everything, "other" answers another range, "change" replaces the object before the answer, "endless" sends
            more than the range for as long as the client takes it.
        status: Of "status".
        at: Where in the body, from 0 to 1.
        text: The code of an error, or where a redirect leads.
        size: Bytes that the answer says the object has, or "endless" the body; 0: as it is.
    """

    kind: str
    status: int = 500
    at: float = 0.5
    text: str = "SomeCode"
    size: int = 0


@dataclass
class HttpStore:
    """Objects by path, and what was asked for.

    Attributes:
        objects: The bytes.
        fault: Called with the path, the range's begin and the number of the request; None: no fault.
        tag: How an ETag is made; None: there is none.
        ranges: Each range that was sent whole.
        requests: The path, the range's begin and ``If-Match`` of each request.
        targets: The whole target of each request, with its query.
        headers: All headers of each request.
        sent: Bytes that "endless" has sent.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    fault: Callable[[str, int, int], Fault | None] = lambda *_: None
    tag: Callable[[bytes], str | None] = lambda body: f'"{hashlib.blake2b(body, digest_size=8).hexdigest()}"'
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    requests: list[tuple[str, int, str | None]] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0
    most_at_once: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    _at_once: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def put(self, path: str, body: bytes) -> str:
        """Store an object, and return its URL."""
        self.objects[path] = body
        return f"{self.url}/{path}"

    def replaced(self, path: str) -> None:
        """Replace an object by one of the same size."""
        self.objects[path] = bytes(byte ^ 255 for byte in self.objects[path][:64]) + self.objects[path][64:]

    @contextmanager
    def served(self) -> Iterator[HttpStore]:
        """Serve it on this host."""
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                store._answer(self)
                self.close_connection = True  # no thread waits for another request

            def end_headers(self) -> None:
                self.send_header("Connection", "close")
                super().end_headers()

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                pass  # a client that hung up

        server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0].lstrip("/")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        begin = int(asked[1]) if asked else 0
        with self._lock:
            number = len(self.requests)
            self.requests.append((path, begin, request.headers.get("If-Match")))
            self.targets.append(request.path)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self._send(request, path, asked, begin, number)
        except OSError:
            request.close_connection = True
        finally:
            with self._lock:
                self._at_once -= 1

    def _send(self, request: Any, path: str, asked: Any, begin: int, number: int) -> None:
        fault = self.fault(path, begin, number)
        kind = fault.kind if fault else ""
        if kind == "change":
            self.replaced(path)
        body = self.objects.get(path, b"")
        missing = path not in self.objects
        tag = self.tag(body)
        if kind == "late":
            time.sleep(0.02)
        elif kind == "drop":
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
            return
        if fault and kind == "redirect":
            request.send_response(302)
            request.send_header("Location", fault.text)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        status = fault.status if fault and kind == "status" else 404 if missing else 0
        wanted = request.headers.get("If-Match")
        if not status and wanted is not None and wanted != tag:
            status = 412
        if status:
            code = fault.text if fault else "SomeCode"
            text = f"<Error><Code>{code}</Code><Secret>SECRET</Secret></Error>".encode()
            request.send_response(status)
            request.send_header("Content-Length", str(len(text)))
            if status == 503:
                request.send_header("Retry-After", "1")
            request.end_headers()
            request.wfile.write(text)
            return
        end = min(int(asked[2]) + 1, len(body)) if asked else len(body)
        if asked and begin >= end:
            request.send_response(416)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        part = body[begin:end]
        announced = fault.size if fault else 0
        if asked and kind != "whole":
            shown = begin + 1 if kind == "other" else begin
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {shown}-{shown + len(part) - 1}/{announced or len(body)}")
            announced = announced if kind == "endless" else 0
        else:
            part = body
            request.send_response(200)
        request.send_header("Content-Length", str(announced or len(part)))
        if tag is not None:
            request.send_header("ETag", tag)
        request.end_headers()
        while kind == "endless":
            self.sent += request.connection.send(bytes(1 << 20))
        if fault is not None and kind in ("cut", "stall"):
            request.wfile.write(part[: int(len(part) * fault.at)])
            request.wfile.flush()
            if kind == "stall":
                self.released.wait(60)
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
            return
        sent = (path, begin, begin + len(part))
        with self._lock:
            self.ranges.append(sent)  # before who asked for it can have it, and looks
        try:
            request.wfile.write(part)
        except OSError:
            with self._lock:
                self.ranges.remove(sent)
            raise
