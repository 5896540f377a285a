"""What Python answers over gRPC: a message in, a message out, whoever has the connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from ortmulti import _core
from ortmulti.serve.messages import message
from ortmulti.serve.reply import Reply
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
        self._service.load(asked.model_name)
        return {}

    def _unload(self, asked: Any) -> Mapping[str, Any]:
        self._service.unload(asked.model_name)
        return {}

    async def respond(self, call: _core.FrontCall) -> Reply:
        """Answer a call, by its path: ``/inference.GRPCInferenceService/ServerMetadata``.

        Raises:
            Refused: The message is none of this method.
            Error: As the library's calls.
        """
        name = call.path.decode().rpartition("/")[2]
        answer = self.calls[name]  # the core refuses other methods
        try:
            asked = message(f"{name}Request").FromString(bytes(call.body))
        except DecodeError as error:
            raise Refused(400, f"the message is no {name}Request: {error}") from None
        if name == "RepositoryModelLoad":
            self._service.check_load(asked.parameters)
        slow = name in ("RepositoryModelLoad", "RepositoryModelUnload")
        fields = await self._service.run_slowly(answer, asked) if slow else answer(asked)
        response = json_format.ParseDict(fields, message(f"{name}Response")(), ignore_unknown_fields=True)
        return Reply(200, [], response.SerializeToString())
