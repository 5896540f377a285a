"""The Open Inference Protocol over gRPC, for a server of `grpc.aio` of one's own."""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import grpc

from ortmulti.serve.rpc import HEALTH, SERVICE, STREAM, TRACED, Rpc
from ortmulti.serve.service import Refused, Service, status_and_text

__all__ = ["add_to"]

LOGGER = logging.getLogger("ortmulti.serve")

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_OPEN_TO_ALL = ("ServerLive", "ServerReady", "ModelReady", "Check")


class _Handlers:
    def __init__(self, service: Service, most_tensors: int, token: str | None) -> None:
        self.rpc = Rpc(service, most_tensors)
        self._service = service
        self._expected = None if token is None else f"Bearer {token}"

    async def answer(self, path: str, body: bytes, context: Any) -> bytes:
        try:
            trace = self._trace(path, context)
            answer = await self.rpc.respond(path, body, trace, context.peer())
        except Exception as error:
            await self._abort(context, error)
        self._service.answers["grpc", "OK"] += 1
        return answer

    async def stream(self, path: str, bodies: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answers each request of a stream in turn; an error is an answer, and the stream goes on."""
        try:
            trace = self._trace(path, context)
        except Refused as error:
            await self._abort(context, error)
        async for body in bodies:
            yield await self.answer_of_stream(path, body, trace, context)

    async def answer_of_stream(self, path: str, body: bytes, trace: Mapping[str, str], context: Any) -> bytes:
        try:
            answer = await self.rpc.respond(path, body, trace, context.peer())
        except Refused as error:  # no message of the protocol's
            await self._abort(context, error)
        self._service.answers["grpc", "OK"] += 1
        return answer

    def _trace(self, path: str, context: Any) -> Mapping[str, str]:
        """Raise `Refused` without the token; return what the caller says of its span."""
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        if (
            self._expected is not None
            and path.rpartition("/")[2] not in _OPEN_TO_ALL
            and not hmac.compare_digest(metadata.get("authorization", "").encode(), self._expected.encode())
        ):
            raise Refused(401, "a token is needed: authorization: Bearer TOKEN")
        return {key: metadata[key] for key in TRACED if key in metadata}

    async def _abort(self, context: Any, error: Exception) -> None:
        status, text = status_and_text(error)
        if status == 500:
            LOGGER.warning("%s", error)
        code = _CODES.get(status, grpc.StatusCode.INTERNAL)
        self._service.answers["grpc", code.name] += 1
        await context.abort(code, text)


def add_to(server: grpc.aio.Server, service: Service, most_tensors: int = 1024, token: str | None = None) -> None:
    """Add the protocol's service, and gRPC's health service, to a server of `grpc.aio`.

    Args:
        server: It has not been started.
        service: What answers.
        most_tensors: Inputs, and outputs, of a request.
        token: Clients send it as the metadata ``authorization: Bearer TOKEN``, but for health; None: none is needed.
    """
    handlers = _Handlers(service, most_tensors, token)

    def unary(service: str, name: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(partial(handlers.answer, f"/{service}/{name}"))

    methods = {name: unary(SERVICE, name) for name in (*handlers.rpc.calls, "ModelInfer")}
    methods[STREAM] = grpc.stream_stream_rpc_method_handler(partial(handlers.stream, f"/{SERVICE}/{STREAM}"))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(HEALTH, {"Check": unary(HEALTH, "Check")}),
        )
    )
