"""The Open Inference Protocol over gRPC, for a server of `grpc.aio` of one's own: its calls go the way of those of
`ortmulti serve`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc

from ortmulti import _core
from ortmulti.errors import InvalidType
from ortmulti.serve.front import Front
from ortmulti.serve.limits import Limits
from ortmulti.serve.reply import Reply
from ortmulti.serve.rpc import SERVICE, Rpc
from ortmulti.serve.service import Service

__all__ = ["add_to"]

_HEALTH = "grpc.health.v1.Health"
_STREAM = "ModelStreamInfer"
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class _Handlers:
    def __init__(self, service: Service, front: Front) -> None:
        self._service = service
        self._front = front

    async def answer(self, path: str, body: bytes, context: Any) -> bytes:
        call = self._call(path, context)
        return await self._message(self._front.begin(call) or await self._reply(call, body), context)

    async def stream(self, path: str, bodies: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer each request of a stream in turn; an error is an answer, and the stream goes on."""
        if refused := self._front.begin(self._call(path, context)):
            await self._message(refused, context)
        async for body in bodies:
            yield await self._message(await self._reply(self._call(path, context, True), body), context)

    def _call(self, path: str, context: Any, streamed: bool = False) -> _core.FrontCall:
        metadata = context.invocation_metadata() or ()
        headers = [(key.encode(), value.encode()) for key, value in metadata if isinstance(value, str)]
        return self._front.call(True, "POST", path, headers, context.peer(), streamed)

    async def _reply(self, call: _core.FrontCall, body: bytes) -> Reply:
        return self._front.receive(call, body) or await self._front.answer(call)

    async def _message(self, reply: Reply, context: Any) -> bytes:
        code = _CODES[_core.to_grpc(reply.status)]
        self._service.answers["grpc", code.name] += 1
        if code is not grpc.StatusCode.OK:
            await context.abort(code, reply.message)
        return reply.body


def add_to(server: grpc.aio.Server, service: Service, limits: Limits, token: str | None = None) -> None:
    """Add the protocol's service, and gRPC's health service, to a server of `grpc.aio`.

    Args:
        server: It has not been started.
        service: What answers.
        limits: See `Limits`.
        token: Clients send it as the metadata ``authorization: Bearer TOKEN``, but for health; None: none is needed.
    """
    if not isinstance(server, grpc.aio.Server):
        raise InvalidType(f"server is one of grpc.aio, not {server!r}: make it with grpc.aio.server()")
    rpc = Rpc(service)
    handlers = _Handlers(service, Front(service, limits, token, rpc=rpc))

    def unary(service: str, name: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(partial(handlers.answer, f"/{service}/{name}"))

    methods = {name: unary(SERVICE, name) for name in (*rpc.calls, "ServerLive", "ServerReady", "ModelInfer")}
    methods[_STREAM] = grpc.stream_stream_rpc_method_handler(partial(handlers.stream, f"/{SERVICE}/{_STREAM}"))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(_HEALTH, {"Check": unary(_HEALTH, "Check")}),
        )
    )
