"""What Python answers over gRPC: a message in, a message out, whoever has the connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from ortmulti import _core
from ortmulti.serve.http import MOST_OF_OTHERS, Reply
from ortmulti.serve.messages import message
from ortmulti.serve.service import Refused, Service

__all__ = ["SERVICE", "Rpc"]

SERVICE = "inference.GRPCInferenceService"


class Rpc:
    """Answers all but infer and health.

    Args:
        service: What answers.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        # Each method, and a function of its request that returns the fields of its response.
        self.calls: dict[str, Callable[[Any], Mapping[str, Any]]] = {
            "ServerMetadata": lambda _asked: service.server_metadata(),
            "ModelReady": lambda asked: {"ready": service.model_ready(asked.name, asked.version)},
            "ModelMetadata": lambda asked: service.model_metadata(asked.name, asked.version),
            "ModelConfig": lambda asked: {"config": service.model_config(asked.name, asked.version)},
            "ModelStatistics": lambda asked: service.statistics(asked.name, asked.version),
            "RepositoryIndex": lambda asked: {"models": service.index(ready=asked.ready)},
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }

    def _load(self, asked: Any) -> Mapping[str, Any]:
        self._service.load(asked.model_name, asked.parameters)
        return {}

    def _unload(self, asked: Any) -> Mapping[str, Any]:
        self._service.unload(asked.model_name)
        return {}

    async def respond(self, call: _core.FrontCall) -> Reply:
        """Answer a call, by its path: ``/inference.GRPCInferenceService/ServerMetadata``.

        Raises:
            Refused: There is no such method, or the message is none of its.
            Error: As the library's calls.
        """
        path, body = call.path.decode("latin-1"), call.body
        service, _, name = path.removeprefix("/").partition("/")
        answer = self.calls.get(name) if service == SERVICE else None
        if answer is None:
            raise Refused(501, f"there is no method {path[:200]!r}")
        if len(body) > MOST_OF_OTHERS:
            raise Refused(413, f"the message has {len(body)} bytes, and {MOST_OF_OTHERS} are allowed for {name}")
        try:
            asked = message(f"{name}Request").FromString(body)
        except DecodeError as error:
            raise Refused(400, f"the message is no {name}Request: {error}") from None
        slow = name in ("RepositoryModelLoad", "RepositoryModelUnload")
        fields = await self._service.run_slowly(answer, asked) if slow else answer(asked)
        response = json_format.ParseDict(fields, message(f"{name}Response")(), ignore_unknown_fields=True)
        return Reply(200, [], response.SerializeToString())
