"""What Python answers over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

from ortmulti import _core
from ortmulti.errors import InvalidArgument
from ortmulti.serve.service import Refused, Service

__all__ = ["Http", "Reply"]

_JSON = (b"content-type", b"application/json")


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
        parts = call.path.decode("utf-8", "replace").strip("/").split("/")
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
        asked = _object(_loads(bytes(call.body) or b"{}"), "the body")
        if parts == ["index"]:
            return _json(self._service.index(ready=asked.get("ready") is True))
        if len(parts) == 3 and parts[0] == "models" and parts[2] in ("load", "unload"):
            parameters = _object(asked.get("parameters") or {}, "parameters")
            if parts[2] == "load":
                self._service.check_load(parameters)
            del asked, parameters  # they would take memory until it has its turn
            await self._service.run_slowly(getattr(self._service, parts[2]), parts[1])
            return Reply(200, [_JSON], b"")
        raise Refused(404, "Not Found")


_KINDS = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is a JSON object, not {_KINDS[type(value)]}")
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
