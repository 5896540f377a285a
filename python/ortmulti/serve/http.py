"""The Open Inference Protocol over HTTP, as a bare ASGI application."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from ortmulti.errors import Error, InvalidArgument
from ortmulti.serve.compression import compressed, decompressed
from ortmulti.serve.datatypes import bytes_of_array, numbers_of_array
from ortmulti.serve.limits import Limits
from ortmulti.serve.service import (
    Answer,
    InferRequest,
    InputTensor,
    Refused,
    Service,
    check_no_classification,
    check_no_shared_memory,
    status_and_text,
)

__all__ = ["Application", "Count", "need_memory", "parse_infer", "uncounted", "write_answer"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
# Counts bytes of memory for a request; False: there is no room for them.
Count = Callable[[int], bool]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LOGGER = logging.getLogger("ortmulti.serve")
ACCESS = logging.getLogger("ortmulti.serve.access")

# Of the data of a bytes object.
_ALIGNMENT = 16
# A length has fewer.
_DIGITS = 20
_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
_HEADER_LENGTH = b"inference-header-content-length"
# Of a request without an answer, as nginx has it in its log.
_GONE = 499
# Bytes of a request that is no infer: it has no tensors.
MOST_OF_OTHERS = 64 << 10
# An extension of the scope: a `Count`.
COUNT = "ortmulti.count"
# Bytes of objects that a byte of JSON may become: an empty list has 80, and three bytes.
_OBJECTS = 30
# Of an answer, each byte of an array is in a piece, in the body and in what is sent.
COPIES = 3
# Of a number that is sent as JSON: an object, a place in a list, and its text.
_NUMBER = 64
_TRACED = (b"traceparent", b"tracestate", b"baggage")


class Application:
    """The ASGI application. It may be mounted in another one.

    Args:
        service: What answers.
        limits: See `Limits`.
        token: Clients send it as ``Authorization: Bearer TOKEN``, but for health; None: nobody needs one.
        access_log: Whether each request makes a record of the logger ``ortmulti.serve.access``.
    """

    def __init__(
        self, service: Service, limits: Limits | None = None, token: str | None = None, *, access_log: bool = False
    ) -> None:
        self.service = service
        self.limits = limits or Limits()
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._access_log = access_log
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or a lifespan's messages."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']!r}")
        begin = time.perf_counter()
        status, headers, body = await self.respond(scope, receive)
        if status != _GONE:
            self.service.answers["http", str(status)] += 1
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        if self._access_log:
            client = (scope.get("client") or ("-",))[0]
            milliseconds = (time.perf_counter() - begin) * 1e3
            ACCESS.info(
                "%s %s %s %d %d %.1f ms", client, scope["method"], _shown(scope), status, len(body), milliseconds
            )

    async def respond(self, scope: Scope, receive: Receive) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Return an answer's status, its headers but for content-length, and its body."""
        try:
            status, headers, body = await self._answer(scope, receive)
        except Exception as error:
            status, text = status_and_text(error)
            if status == 500:
                LOGGER.warning(
                    "%s %s: %s", scope["method"], _shown(scope), error, exc_info=not isinstance(error, Error)
                )
            headers, body = [_JSON], _dumps({"error": text})
            if isinstance(error, _WrongMethod):
                headers.append((b"allow", ", ".join(error.allowed).encode()))
            error.__traceback__ = None  # its frames would keep the body until garbage is collected
        return status, headers, b"" if scope["method"] == "HEAD" else body

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        parts = _path(scope).strip("/").split("/")
        headers = dict(scope["headers"])
        health = parts[:2] == ["v2", "health"]
        of_model = parts[3:] if parts[:2] == ["v2", "models"] else []
        open_to_all = health or of_model == ["ready"] or (of_model[:1] == ["versions"] and of_model[2:] == ["ready"])
        if not open_to_all and self._expected is not None:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                raise Refused(401, "a token is needed: Authorization: Bearer TOKEN")
        if health:
            return self._health(parts)
        if self.under_way >= self.limits.concurrent:
            raise Refused(503, f"{self.under_way} requests are under way, which is the limit")
        self.under_way += 1
        try:
            return await self._dispatch(scope, parts, headers, receive)
        finally:
            self.under_way -= 1

    def _health(self, parts: Sequence[str]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        if parts[2:] == ["live"]:
            return _json({"live": True})
        if parts[2:] == ["ready"]:
            ready = self.service.is_ready()
            return _json({"ready": ready}, 200 if ready else 400)
        raise Refused(404, "Not Found")

    async def _dispatch(
        self, scope: Scope, parts: list[str], headers: Mapping[bytes, bytes], receive: Receive
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        service, method = self.service, scope["method"]
        if parts == ["metrics"]:
            _check_method(method, "GET", "HEAD")
            # It asks the driver for the GPUs' memory.
            page = await asyncio.to_thread(service.metrics)
            return 200, [(b"content-type", b"text/plain; version=0.0.4")], page.encode()
        if parts[0] != "v2":
            raise Refused(404, "Not Found")
        if parts[1:2] == ["repository"]:
            return await self._repository(method, parts[2:], headers, receive)
        if parts[1:2] != ["models"]:
            if len(parts) > 1:
                raise Refused(404, "Not Found")
            _check_method(method, "GET", "HEAD")
            return _json(service.server_metadata())
        if parts[2:] == ["stats"]:
            _check_method(method, "GET", "HEAD")
            return _json(service.statistics())
        name, version, what = _model_of(parts[2:])
        if what == "infer":
            _check_method(method, "POST")
            client = scope.get("client")
            caller = f"{client[0]} {client[1]}" if client else None
            body = await self._body(scope, headers, receive, self.limits.body)
            return await self._infer(name, version, headers, body, caller, _count_of(scope))
        calls = {"": service.model_metadata, "config": service.model_config, "stats": service.statistics}
        if what != "ready" and what not in calls:
            raise Refused(404, "Not Found")
        _check_method(method, "GET", "HEAD")
        if what == "ready":
            ready = service.model_ready(name, version)
            return _json({"name": name, "ready": ready}, 200 if ready else 400)
        return _json(calls[what](name, version))

    async def _repository(
        self, method: str, parts: list[str], headers: Mapping[bytes, bytes], receive: Receive
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        _check_method(method, "POST")
        body = await self._body({}, headers, receive, min(self.limits.body, MOST_OF_OTHERS))
        asked = _object(_loads(bytes(body) or b"{}"), "the body")
        if parts == ["index"]:
            return _json(self.service.index(ready=asked.get("ready") is True))
        if len(parts) == 3 and parts[0] == "models" and parts[2] in ("load", "unload"):
            parameters = _object(asked.get("parameters") or {}, "parameters")
            if parts[2] == "load":
                self.service.check_load(parameters)
            del asked, parameters, body  # they would take memory until it has its turn
            await self.service.run_slowly(getattr(self.service, parts[2]), parts[1])
            return 200, [_JSON], b""
        raise Refused(404, "Not Found")

    async def _body(
        self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes], receive: Receive, limit: int
    ) -> bytes | memoryview:
        """Return the body. Binary tensors begin at an address that arrays may have, where it came in parts."""
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            raise Refused(413, f"the body has {int(declared)} bytes, and {limit} are allowed")
        message = await receive()
        body: bytes | memoryview = message.get("body", b"")
        if message.get("more_body"):
            before = -max(0, _length(headers.get(_HEADER_LENGTH, b"0"))) % _ALIGNMENT
            parts, size = [bytes(before), body], len(body)
            while message.get("more_body"):
                message = await receive()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    raise Refused(413, f"the body has more than the {limit} bytes that are allowed")
            body = memoryview(b"".join(parts))[before:]
        elif len(body) > limit:
            raise Refused(413, f"the body has {len(body)} bytes, and {limit} are allowed")
        if message["type"] == "http.disconnect":
            raise Refused(_GONE, "the client has gone")
        coding = headers.get(b"content-encoding", b"").lower()
        if coding in (b"", b"identity"):
            return body
        need_memory(_count_of(scope), len(body))
        return await asyncio.to_thread(decompressed, body, coding, limit, _count_of(scope))

    async def _infer(
        self,
        name: str,
        version: str,
        headers: Mapping[bytes, bytes],
        body: bytes | memoryview,
        caller: str | None,
        count: Count,
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        self.service.interface(name, version)  # before the body of a model that is not there is read
        json_bytes = _length(headers.get(_HEADER_LENGTH, b"%d" % len(body)))
        if json_bytes <= self.limits.json:  # else it is refused
            need_memory(count, len(body) + _OBJECTS * min(json_bytes, len(body)))
        request, binary = parse_infer(body, headers.get(_HEADER_LENGTH), self.limits.tensors, self.limits.json)
        request.model, request.version, request.caller = name, version, caller
        if any(key in headers for key in _TRACED):
            request.trace = {key.decode(): headers[key].decode("latin-1") for key in _TRACED if key in headers}
        answer = await self.service.infer(request)
        for declared, array in answer.outputs:
            as_bytes = binary.of.get(declared.name, binary.all)
            need_memory(count, COPIES * array.nbytes if as_bytes else _NUMBER * array.size + COPIES * array.nbytes)
        content, header_length = write_answer(answer, request.id, binary)
        sent = [_JSON]
        if header_length is not None:
            sent = [_BINARY, (_HEADER_LENGTH, b"%d" % header_length)]
        return 200, *await compressed(sent, content, headers.get(b"accept-encoding", b""))


# A request's body, and an answer's.


class Binary:
    """Which outputs a client wants in the binary form.

    Attributes:
        all: Whether those that it says nothing of are.
        of: What it says of each, by name.
    """

    __slots__ = ("all", "of")

    def __init__(self, everything: bool) -> None:
        self.all = everything
        self.of: dict[str, bool] = {}


def parse_infer(
    body: bytes | memoryview, header_length: bytes | None, most_tensors: int, most_json: int
) -> tuple[InferRequest, Binary]:
    """Read the body of an inference request: JSON, with the binary data of its inputs behind it.

    Args:
        body: The body.
        header_length: Value of the header Inference-Header-Content-Length; None: the body is JSON alone.
        most_tensors: Inputs, and outputs, that are allowed.
        most_json: Bytes of JSON that are.

    Raises:
        InvalidArgument: It is none.
        Refused: It has more JSON.
    """
    view = memoryview(body)
    at = len(body)
    if header_length is not None:
        at = _length(header_length)
        if not 0 <= at <= len(body):
            raise InvalidArgument(f"Inference-Header-Content-Length is 0 to {len(body)} for this body")
    if at > most_json:
        raise Refused(
            413,
            f"the request has {at} bytes of JSON, and {most_json} are allowed: send larger tensors in the binary form, "
            "behind the JSON",
        )
    asked = _object(_loads(bytes(view[:at])), "the request")
    parameters = _object(asked.get("parameters") or {}, "parameters")
    tensors = []
    for each in _list(asked.get("inputs"), "inputs", most_tensors):
        tensor = _object(each, "an input")
        name, datatype, shape = tensor.get("name"), tensor.get("datatype"), tensor.get("shape")
        if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
            raise InvalidArgument(
                "an input has a 'name' and a 'datatype', which are strings, and a 'shape', which is a list"
            )
        own = _object(tensor.get("parameters") or {}, "an input's parameters")
        check_no_shared_memory(own)
        size = own.get("binary_data_size")
        if size is None:
            data: Any = tensor.get("data")
            if data is None:
                raise InvalidArgument(
                    f"the input '{name[:200]}' has neither 'data' nor the parameter 'binary_data_size'"
                )
        else:
            if type(size) is not int or not 0 <= size <= len(body) - at:
                raise InvalidArgument(
                    f"the input '{name[:200]}' has binary_data_size {size!r:.30}, and {len(body) - at} bytes are left"
                )
            data = view[at : at + size]
            at += size
        tensors.append(InputTensor(name, datatype, shape, data))
    if at != len(body):
        raise InvalidArgument(f"{len(body) - at} bytes behind the inputs' binary data belong to none")
    binary = Binary(parameters.get("binary_data_output") is True)
    outputs = []
    for each in _list(asked.get("outputs") or [], "outputs", most_tensors):
        output = _object(each, "an output")
        if not isinstance(output.get("name"), str):
            raise InvalidArgument("an output has a 'name', which is a string")
        own = _object(output.get("parameters") or {}, "an output's parameters")
        check_no_shared_memory(own)
        check_no_classification(own.get("classification"))
        if isinstance(own.get("binary_data"), bool):
            binary.of[output["name"]] = own["binary_data"]
        outputs.append(output["name"])
    given = asked.get("id", "")
    if not isinstance(given, str):
        raise InvalidArgument("the 'id' of a request is a string")
    return InferRequest("", "", given, tensors, outputs, parameters), binary


def write_answer(answer: Answer, request_id: str, binary: Binary) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the bytes of the JSON in it where binary data follow."""
    described: list[dict[str, Any]] = []
    blobs = []
    for declared, array in answer.outputs:
        one: dict[str, Any] = {"name": declared.name, "datatype": declared.datatype, "shape": list(array.shape)}
        if binary.of.get(declared.name, binary.all):
            blob = bytes_of_array(array, declared.datatype)
            one["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            one["data"] = numbers_of_array(array, declared.datatype)
        described.append(one)
    head: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version, "outputs": described}
    if request_id:
        head["id"] = request_id
    content = _dumps(head)
    return (b"".join([content, *blobs]), len(content)) if blobs else (content, None)


def _length(header: bytes) -> int:
    """Return the number of a header; -1 where it is none."""
    return int(header) if header.isdigit() and len(header) < _DIGITS else -1


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is a JSON object, not {type(value).__name__}")
    return value


def _list(value: object, what: str, most: int) -> list[Any]:
    if value is None:
        raise InvalidArgument(f"{what} is missing, or null: give a list")
    if not isinstance(value, list):
        raise InvalidArgument(f"{what} is a list, not {type(value).__name__}")
    if len(value) > most:
        raise InvalidArgument(f"{len(value)} {what} were sent, and {most} are allowed")
    return value


def _loads(content: bytes) -> object:
    try:
        text = str(content, "utf-8-sig")
        value: object = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # half a surrogate pair is no text
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:  # UnicodeError too
        raise InvalidArgument(f"failed to parse the request JSON buffer: {error!s:.100}") from None


def _dumps(value: object) -> bytes:
    # Names of files may be no UTF-8.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _json(value: object, status: int = 200) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    return status, [_JSON], _dumps(value)


# HTTP.


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _shown(scope: Scope) -> str:
    """Return the path for a line of a log, which nothing in it ends."""
    return ascii(_path(scope))[1:-1]


def _model_of(parts: list[str]) -> tuple[str, str, str]:
    """Split the path NAME[/versions/VERSION][/WHAT] into these three; "" for one that is not there."""
    name, *rest = parts or [""]
    version = ""
    if rest[:1] == ["versions"]:
        version, rest = "".join(rest[1:2]), rest[2:]
    if not name or len(rest) > 1:
        raise Refused(404, "Not Found")
    return name, version, rest[0] if rest else ""


class _WrongMethod(Refused):
    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        super().__init__(405, f"the method is {allowed[0]}, not {method[:20]}")
        self.allowed = allowed


def _check_method(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise _WrongMethod(method, allowed)


def _count_of(scope: Mapping[str, Any]) -> Count:
    count: Count = (scope.get("extensions") or {}).get(COUNT, uncounted)
    return count


def uncounted(_bytes: int) -> bool:
    """Have room for everything: a server that is not ours counts for itself."""
    return True


def need_memory(count: Count, size: int) -> None:
    """Raise `Refused` where the server has no room for so many bytes."""
    if not count(max(size, 0)):
        raise Refused(503, "the server has no memory left for requests, try again later")


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
