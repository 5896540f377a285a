"""What Python answers over HTTP, and the compression of bodies."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from ortmulti import _core
from ortmulti.errors import InvalidArgument
from ortmulti.serve.service import Refused, Service

__all__ = ["MOST_OF_OTHERS", "Http", "Reply", "accepted", "compressed", "decompressed"]

_JSON = (b"content-type", b"application/json")
# Bytes of a request that is no infer: it has no tensors.
MOST_OF_OTHERS = 1 << 20


class Reply(NamedTuple):
    """An answer as the core has it.

    Attributes:
        status: HTTP's.
        headers: Over HTTP, without content-length.
        body: Of gRPC a message; empty where the status is not 200.
        message: Of gRPC, where the status is not 200.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    message: str = ""


class Http:
    """Answers all but infer and health.

    Args:
        service: What answers.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def respond(self, call: _core.FrontCall) -> Reply:
        """Answer a call.

        Raises:
            Refused: It asks for nothing that is there.
            Error: As the library's calls.
        """
        service, method = self._service, call.method
        parts = unquote(call.path.decode("latin-1")).strip("/").split("/")
        if parts == ["metrics"]:
            _check_method(method, "GET", "HEAD")
            # It asks the driver for the GPUs' memory.
            page = await asyncio.to_thread(service.metrics)
            return Reply(200, [(b"content-type", b"text/plain; version=0.0.4")], page.encode())
        if parts[:2] == ["v2", "repository"]:
            return await self._repository(call, parts[2:])
        if parts[:2] != ["v2", "models"]:
            if parts != ["v2"]:
                raise Refused(404, "Not Found")
            _check_method(method, "GET", "HEAD")
            return _json(service.server_metadata())
        if parts[2:] == ["stats"]:
            _check_method(method, "GET", "HEAD")
            return _json(service.statistics())
        name, version, what = _model_of(parts[2:])
        if what == "infer":
            _check_method(method, "POST")
        if what == "ready":
            _check_method(method, "GET", "HEAD")
            ready = service.model_ready(name, version)
            return _json({"name": name, "ready": ready}, 200 if ready else 400)
        calls = {"": service.model_metadata, "config": service.model_config, "stats": service.statistics}
        if what not in calls:
            raise Refused(404, "Not Found")
        _check_method(method, "GET", "HEAD")
        return _json(calls[what](name, version))

    async def _repository(self, call: _core.FrontCall, parts: list[str]) -> Reply:
        _check_method(call.method, "POST")
        body = call.body
        if len(body) > MOST_OF_OTHERS:
            raise Refused(413, f"the body has {len(body)} bytes, and {MOST_OF_OTHERS} are allowed")
        asked = _object(_loads(body or b"{}"), "the body")
        if parts == ["index"]:
            return _json(self._service.index(ready=asked.get("ready") is True))
        if len(parts) == 3 and parts[0] == "models" and parts[2] in ("load", "unload"):
            parameters = _object(asked.get("parameters") or {}, "parameters")
            if parts[2] == "load":
                await self._service.run_slowly(self._service.load, parts[1], parameters)
            else:
                await self._service.run_slowly(self._service.unload, parts[1])
            return Reply(200, [_JSON], b"")
        raise Refused(404, "Not Found")


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is a JSON object, not {type(value).__name__}")
    return value


def _loads(content: bytes) -> object:
    try:
        value: object = json.loads(str(content, "utf-8-sig"))
        return value
    except (ValueError, RecursionError) as error:  # UnicodeError too
        raise InvalidArgument(f"failed to parse the request JSON buffer: {error!s:.100}") from None


def _json(value: object, status: int = 200) -> Reply:
    # Names of files may be no UTF-8.
    content = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    return Reply(status, [_JSON], content)


def _model_of(parts: list[str]) -> tuple[str, str, str]:
    """Split the path NAME[/versions/VERSION][/WHAT] into these three; "" for one that is not there."""
    name, *rest = parts or [""]
    version = ""
    if rest[:1] == ["versions"]:
        version, rest = "".join(rest[1:2]), rest[2:]
    if not name or len(rest) > 1:
        raise Refused(404, "Not Found")
    return name, version, rest[0] if rest else ""


def _check_method(method: str, *allowed: str) -> None:
    if method not in allowed:
        headers = [(b"allow", ", ".join(allowed).encode())]
        raise Refused(405, f"the method is {allowed[0]}, not {method[:20]}", headers)


# Compression.

_FIRST_STEP = 512
_MOST_STEP = 1 << 20
_WINDOWS = {b"gzip": zlib.MAX_WBITS + 16, b"deflate": zlib.MAX_WBITS}


def decompressed(body: bytes, coding: bytes) -> Iterator[bytes]:
    """Decompress a body, in pieces of at most 1 MiB.

    Raises:
        Refused: The coding is another one.
        InvalidArgument: The body is not of this coding.
    """
    window = _WINDOWS.get(coding)
    if window is None:
        raise Refused(415, f"the content encoding is gzip or deflate, not {coding.decode('latin-1')[:20]}")
    view, at, first = memoryview(body), 0, True
    while at < len(view) or first:  # gzip may have several members
        inflate, step, over, first = zlib.decompressobj(window), _FIRST_STEP, False, False
        while not over:
            part = view[at : at + step]
            try:
                piece = inflate.decompress(part, _MOST_STEP)
            except zlib.error as error:
                raise InvalidArgument(f"the body is not {coding.decode()}: {error}") from None
            yield piece
            over = inflate.eof
            at += len(part) - len(inflate.unused_data if over else inflate.unconsumed_tail)
            if at == len(view) and len(piece) < _MOST_STEP and not over:
                raise InvalidArgument(f"the body is not {coding.decode()}: it is incomplete")
            step = min(2 * step, _MOST_STEP)  # so that little is read twice, however small the members are


def accepted(header: bytes) -> bytes | None:
    """Return the coding that a client wants first, of those that are there, by its Accept-Encoding."""
    wanted: Sequence[bytes] = [
        part.partition(b";")[0].strip() for part in header.split(b",") if not part.replace(b" ", b"").endswith(b";q=0")
    ]
    return next((coding for coding in wanted if coding in _WINDOWS), None)


def compressed(content: bytes, coding: bytes) -> bytes:
    """Compress an answer."""
    deflate = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[coding])
    return deflate.compress(content) + deflate.flush()
