"""What Python answers over HTTP."""

from __future__ import annotations

import asyncio

from ortmulti import _core
from ortmulti.serve.limits import Limits
from ortmulti.serve.reply import JSON, Reply, as_object, check_method, json_reply, loads
from ortmulti.serve.service import Refused, Service
from ortmulti.serve.texts import Texts

__all__ = ["Http"]


class Http:
    """Answers all but infer and health.

    Args:
        service: What answers.
        limits: See `Limits`.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self._service = service
        self._texts = Texts(service, limits)

    async def respond(self, call: _core.FrontCall) -> Reply:
        """Answer a call.

        Raises:
            Refused: It asks for nothing that is there.
            Error: As the library's calls.
        """
        service, method = self._service, call.method
        parts = call.path.decode("utf-8", "replace").strip("/").split("/")
        if parts == ["metrics"]:
            check_method(method, "GET", "HEAD")
            # It asks the driver for the GPUs' memory.
            page = await asyncio.to_thread(service.metrics)
            return Reply(200, [(b"content-type", b"text/plain; version=0.0.4")], page.encode())
        if self._texts.answers(method, parts):
            return await self._texts.respond(call, parts)
        if parts[:2] == ["v2", "repository"]:
            return await self._repository(call, parts[2:])
        if parts[:2] != ["v2", "models"]:
            if parts != ["v2"]:
                raise Refused(404, "Not Found")
            check_method(method, "GET", "HEAD")
            return json_reply(service.server_metadata())
        if parts[2:] == ["stats"]:
            check_method(method, "GET", "HEAD")
            return json_reply(service.statistics())
        name, version, what = _model_of(parts[2:])
        if what == "infer":
            check_method(method, "POST")
        if what == "ready":
            check_method(method, "GET", "HEAD")
            ready = service.model_ready(name, version)
            return json_reply({"name": name, "ready": ready}, 200 if ready else 400)
        calls = {"": service.model_metadata, "config": service.model_config, "stats": service.statistics}
        if what not in calls:
            raise Refused(404, "Not Found")
        check_method(method, "GET", "HEAD")
        return json_reply(calls[what](name, version))

    async def _repository(self, call: _core.FrontCall, parts: list[str]) -> Reply:
        check_method(call.method, "POST")
        asked = as_object(loads(bytes(call.body) or b"{}"), "the body")
        if parts == ["index"]:
            return json_reply(self._service.index(ready=asked.get("ready") is True))
        if len(parts) == 3 and parts[0] == "models" and parts[2] in ("load", "unload"):
            parameters = as_object(asked.get("parameters") or {}, "parameters")
            if parts[2] == "load":
                self._service.check_load(parameters)
            del asked, parameters  # they would take memory until it has its turn
            await self._service.run_slowly(getattr(self._service, parts[2]), parts[1])
            return Reply(200, [JSON], b"")
        raise Refused(404, "Not Found")


def _model_of(parts: list[str]) -> tuple[str, str, str]:
    """Split the path NAME[/versions/VERSION][/WHAT] into these three; "" for one that is not there."""
    name, *rest = parts or [""]
    version = ""
    if rest[:1] == ["versions"]:
        version, rest = "".join(rest[1:2]), rest[2:]
    if not name or len(rest) > 1:
        raise Refused(404, "Not Found")
    return name, version, rest[0] if rest else ""
