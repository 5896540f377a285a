"""The Open Inference Protocol over gRPC, for a server of `grpc.aio`."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf import json_format

from ortmulti.errors import InvalidArgument
from ortmulti.serve.datatypes import bytes_of_array
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

__all__ = ["Handlers", "add_to"]

LOGGER = logging.getLogger("ortmulti.serve")

_SERVICE = "inference.GRPCInferenceService"
_HEALTH = "grpc.health.v1.Health"
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_TRACED = ("traceparent", "tracestate", "baggage")
_SERVING, _NOT_SERVING = 1, 2
# Seconds in which a request that has arrived begins.
_TO_BEGIN = 0.2

_Response = message("ModelInferResponse")


class Handlers:
    """The calls of one server."""

    def __init__(self, service: Service, most_tensors: int, token: str | None) -> None:
        self._service = service
        self._most_tensors = most_tensors
        self._expected = None if token is None else f"Bearer {token}"
        self._released = asyncio.Event()
        self._released.set()
        self.under_way = 0

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold answers back meanwhile, and wait until what has arrived is under way.

        gRPC cancels what has arrived and has not begun when a server stops. Who waits for an answer sends nothing new.
        """
        self._released.clear()
        try:
            await asyncio.sleep(_TO_BEGIN)
            yield
        finally:
            self._released.set()

    # Each RPC's name, and a function of its request that returns the fields of its response.

    def calls(self) -> dict[str, Callable[[Any], Mapping[str, Any]]]:
        service = self._service
        return {
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
        self._service.load(asked.model_name, asked.parameters)
        return {}

    def _unload(self, asked: Any) -> Mapping[str, Any]:
        self._service.unload(asked.model_name)
        return {}

    async def check(self, asked: Any, context: Any) -> Any:
        if asked.service not in ("", _SERVICE):
            await self._abort(context, Refused(404, f"there is no service {asked.service[:100]!r}"))
        self._answered("OK")
        return message("HealthCheckResponse")(status=_SERVING if self._service.is_ready() else _NOT_SERVING)

    async def answer(self, name: str, call: Callable[[Any], Mapping[str, Any]], asked: Any, context: Any) -> Any:
        try:
            if name not in ("ServerLive", "ServerReady", "ModelReady"):
                self._check_token(context)
            slow = name in ("RepositoryModelLoad", "RepositoryModelUnload")
            fields = await asyncio.to_thread(call, asked) if slow else call(asked)
        except Exception as error:
            await self._abort(context, error)
        self._answered("OK")
        return json_format.ParseDict(fields, message(f"{name}Response")(), ignore_unknown_fields=True)

    async def infer(self, asked: Any, context: Any) -> Any:
        try:
            response = await self._infer(asked, self._check_token(context), context.peer())
            await self._released.wait()
        except Exception as error:
            await self._released.wait()
            await self._abort(context, error)
        self._answered("OK")
        return response

    async def stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answers each request of a stream in turn; an error is an answer, and the stream goes on."""
        try:
            trace = self._check_token(context)
        except Exception as error:
            await self._abort(context, error)
        answered = message("ModelStreamInferResponse")
        async for asked in requests:
            try:
                response = await self._infer(asked, trace, context.peer())
            except Exception as error:
                yield answered(error_message=self._failed(error)[1], infer_response=_Response(id=asked.id))
            else:
                self._answered("OK")
                yield answered(infer_response=response)

    async def _infer(self, asked: Any, trace: Mapping[str, str], caller: str) -> Any:
        self.under_way += 1
        try:
            return await self._answer(asked, trace, caller)
        finally:
            self.under_way -= 1

    async def _answer(self, asked: Any, trace: Mapping[str, str], caller: str) -> Any:
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
        response = _Response(model_name=answer.model, model_version=answer.version, id=asked.id)
        for declared, array in answer.outputs:
            response.outputs.add(name=declared.name, datatype=declared.datatype, shape=array.shape)
            response.raw_output_contents.append(bytes_of_array(array, declared.datatype))
        return response

    def _check_token(self, context: Any) -> Mapping[str, str]:
        """Raise `Refused` without the token; return what the caller says of its span."""
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        if self._expected is not None and not hmac.compare_digest(
            metadata.get("authorization", "").encode(), self._expected.encode()
        ):
            raise Refused(401, "a token is needed: authorization: Bearer TOKEN")
        return {key: metadata[key] for key in _TRACED if key in metadata}

    async def _abort(self, context: Any, error: Exception) -> None:
        await context.abort(*self._failed(error))

    def _failed(self, error: Exception) -> tuple[grpc.StatusCode, str]:
        """Count an error that is an answer, and return its code and text."""
        status, text = status_and_text(error)
        if status == 500:
            LOGGER.warning("%s", error)
        code = _CODES.get(status, grpc.StatusCode.INTERNAL)
        self._answered(code.name)
        return code, text

    def _answered(self, code: str) -> None:
        self._service.answers["grpc", code] += 1


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


def add_to(server: grpc.aio.Server, service: Service, most_tensors: int = 1024, token: str | None = None) -> Handlers:
    """Add the protocol's service, and gRPC's health service, to a server of `grpc.aio`.

    Args:
        server: It has not been started.
        service: What answers.
        most_tensors: Inputs, and outputs, of a request.
        token: Clients send it as the metadata ``authorization: Bearer TOKEN``, but for health; None: none is needed.

    Returns:
        What answers, for an end that loses nothing.
    """
    handlers = Handlers(service, most_tensors, token)

    def unary(name: str, call: Callable[..., Any]) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=message(f"{name}Request").FromString,
            response_serializer=message(f"{name}Response").SerializeToString,
        )

    methods = {name: unary(name, partial(handlers.answer, name, call)) for name, call in handlers.calls().items()}
    methods["ModelInfer"] = unary("ModelInfer", handlers.infer)
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        handlers.stream,
        request_deserializer=message("ModelInferRequest").FromString,
        response_serializer=message("ModelStreamInferResponse").SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(_SERVICE, methods),
            grpc.method_handlers_generic_handler(_HEALTH, {"Check": unary("HealthCheck", handlers.check)}),
        )
    )
    return handlers
