"""The calls of the Open Inference Protocol over gRPC: a message in, a message out, whoever has the connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from ortmulti.errors import InvalidArgument
from ortmulti.serve.datatypes import bytes_of_array
from ortmulti.serve.http import COPIES, MOST_OF_OTHERS, Count, need_memory, uncounted
from ortmulti.serve.messages import message
from ortmulti.serve.service import (
    InferRequest,
    InputTensor,
    Refused,
    Service,
    check_no_classification,
    check_no_shared_memory,
    status_and_text,
)

__all__ = ["HEALTH", "SERVICE", "STREAM", "TRACED", "Rpc"]

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
STREAM = "ModelStreamInfer"
TRACED = ("traceparent", "tracestate", "baggage")

_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_SERVING, _NOT_SERVING = 1, 2
# Bytes that a byte of a message takes when it is parsed, and when its values are in a list.
_PARSED = 3
_LISTED = 10

_Response = message("ModelInferResponse")


class Rpc:
    """Answers messages.

    Args:
        service: What answers.
        most_tensors: Inputs, and outputs, of a request.
    """

    def __init__(self, service: Service, most_tensors: int) -> None:
        self._service = service
        self._most_tensors = most_tensors
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
            "ServerLive": lambda _asked: {"live": True},
            "ServerReady": lambda _asked: {"ready": service.is_ready()},
        }

    def _load(self, asked: Any) -> Mapping[str, Any]:
        self._service.load(asked.model_name)
        return {}

    def _unload(self, asked: Any) -> Mapping[str, Any]:
        self._service.unload(asked.model_name)
        return {}

    async def respond(
        self, path: str, body: bytes, trace: Mapping[str, str], caller: str, count: Count = uncounted
    ) -> bytes:
        """Answer a message of a call, by its path: ``/inference.GRPCInferenceService/ModelInfer``.

        Each message of a stream is answered alone; an error is an answer there.

        Raises:
            Refused: There is no such method, or the message is none of its.
            Error: As the library's calls.
        """
        service, _, name = path.removeprefix("/").partition("/")
        if (service, name) == (HEALTH, "Check"):
            return self._check(_parsed("HealthCheckRequest", body))
        if service == SERVICE and name in ("ModelInfer", STREAM):
            need_memory(count, _PARSED * len(body))
            asked = _parsed("ModelInferRequest", body)
            answer = self._stream if name == STREAM else self._infer
            return _serialized(await answer(asked, trace, caller, count))
        call = self.calls.get(name) if service == SERVICE else None
        if call is None:
            raise Refused(501, f"there is no method {path[:200]!r}")
        if len(body) > MOST_OF_OTHERS:
            raise Refused(413, f"the message has {len(body)} bytes, and {MOST_OF_OTHERS} are allowed for {name}")
        asked = _parsed(f"{name}Request", body)
        if name == "RepositoryModelLoad":
            self._service.check_load(asked.parameters)
        slow = name in ("RepositoryModelLoad", "RepositoryModelUnload")
        fields = await self._service.run_slowly(call, asked) if slow else call(asked)
        return _serialized(json_format.ParseDict(fields, message(f"{name}Response")(), ignore_unknown_fields=True))

    def _check(self, asked: Any) -> bytes:
        if asked.service not in ("", SERVICE):
            raise Refused(404, f"there is no service {asked.service[:100]!r}")
        status = _SERVING if self._service.is_ready() else _NOT_SERVING
        return _serialized(message("HealthCheckResponse")(status=status))

    async def _stream(self, asked: Any, trace: Mapping[str, str], caller: str, count: Count) -> Any:
        answered = message("ModelStreamInferResponse")
        try:
            return answered(infer_response=await self._infer(asked, trace, caller, count))
        except Exception as error:
            return answered(error_message=status_and_text(error)[1], infer_response=_Response(id=asked.id))

    async def _infer(self, asked: Any, trace: Mapping[str, str], caller: str, count: Count) -> Any:
        self._service.interface(asked.model_name, asked.model_version)  # before inputs for none are read
        need_memory(count, _LISTED * (asked.ByteSize() - sum(map(len, asked.raw_input_contents))))
        request = InferRequest(
            asked.model_name,
            asked.model_version,
            asked.id,
            _inputs(asked, self._most_tensors),
            [_output(each) for each in asked.outputs],
            {name: _parameter(value) for name, value in asked.parameters.items()},
            trace,
            caller,
        )
        answer = await self._service.infer(request)
        need_memory(count, sum(COPIES * array.nbytes for _declared, array in answer.outputs))
        response = _Response(model_name=answer.model, model_version=answer.version, id=asked.id)
        for declared, array in answer.outputs:
            response.outputs.add(name=declared.name, datatype=declared.datatype, shape=array.shape)
            response.raw_output_contents.append(bytes_of_array(array, declared.datatype))
        return response


def _parsed(name: str, body: bytes) -> Any:
    try:
        return message(name).FromString(body)
    except DecodeError as error:
        raise Refused(400, f"the message is no {name}: {error}") from None


def _serialized(response: Any) -> bytes:
    content: bytes = response.SerializeToString()
    return content


def _inputs(asked: Any, most: int) -> list[InputTensor]:
    raw: Sequence[bytes] = asked.raw_input_contents
    if max(len(asked.inputs), len(asked.outputs)) > most:
        raise InvalidArgument(f"{len(asked.inputs)} inputs and {len(asked.outputs)} outputs: {most} are allowed")
    if raw and len(raw) != len(asked.inputs):
        raise InvalidArgument(
            f"{len(raw)} raw_input_contents were sent for {len(asked.inputs)} inputs: one is needed for each"
        )
    tensors = []
    for number, tensor in enumerate(asked.inputs):
        check_no_shared_memory(tensor.parameters)
        if raw:
            data: Any = raw[number]
        else:
            contents = _CONTENTS.get(tensor.datatype)
            if contents is None:
                raise InvalidArgument(
                    f"{tensor.datatype[:20]!r} of input '{tensor.name[:200]}' is sent in raw_input_contents"
                )
            data = list(getattr(tensor.contents, contents))
        tensors.append(InputTensor(tensor.name, tensor.datatype, list(tensor.shape), data))
    return tensors


def _output(asked: Any) -> str:
    check_no_shared_memory(asked.parameters)
    check_no_classification(_parameter(asked.parameters.get("classification")))
    name: str = asked.name
    return name


def _parameter(value: Any) -> Any:
    chosen = value.WhichOneof("parameter_choice") if value is not None else None
    return None if chosen is None else getattr(value, chosen)
