"""The Open Inference Protocol as a bare ASGI application: its calls go the way of those of `ortmulti serve`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ortmulti import _core
from ortmulti.serve.front import Front, check_built
from ortmulti.serve.limits import Limits
from ortmulti.serve.log import log_access
from ortmulti.serve.reply import Reply
from ortmulti.serve.service import Service

__all__ = ["Application"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Of a request without an answer, as nginx has it in its log.
_GONE = 499
_MOST_OF_ID = 100


class Application:
    """The ASGI application. It may be mounted in another one.

    Args:
        service: What answers.
        limits: See `Limits`.
        token: Clients send it as ``Authorization: Bearer TOKEN``, but for health; None: nobody needs one.
        access_log: Whether each request makes a record of the logger ``ortmulti.serve.access``.

    Raises:
        LibraryError: This build has no server.
    """

    def __init__(
        self, service: Service, limits: Limits | None = None, token: str | None = None, *, access_log: bool = False
    ) -> None:
        check_built()
        self.service = service
        self.limits = limits or Limits()
        self._token = token
        self._access_log = access_log
        self._front: Front | None = None
        self._process = 0  # that has the front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or a lifespan's messages."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            # Before it was accepted: servers answer 403. The reason is for those that pass it on.
            reason = "only HTTP is served here: POST to /v2/models/NAME/infer"
            await send({"type": "websocket.close", "code": 1003, "reason": reason})
            return
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']!r}")
        begin = time.perf_counter()
        method, client = scope["method"], scope.get("client")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        front, peer = self._here(), f"{client[0]} {client[1]}" if client else ""
        call = front.call(False, method, path, list(scope["headers"]), peer)
        status, headers, body, _ = (
            front.begin(call) or await _received(front, call, receive) or await _answered(front, call, receive)
        )
        del call  # it counts in the memory for clients
        if status != _GONE:
            self.service.answers["http", str(status)] += 1
        body = b"" if method == "HEAD" else body
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        if self._access_log:
            host, seconds = client[0] if client else "", time.perf_counter() - begin
            sent_id = dict(scope["headers"]).get(b"x-request-id", b"")[:_MOST_OF_ID]
            log_access(host, method, ascii(path)[1:-1], status, len(body), seconds, ascii(sent_id)[2:-1])

    def _here(self) -> Front:
        """Return this process's: a fork has none of its parent's threads."""
        if self._front is None or self._process != os.getpid():
            self._front, self._process = Front(self.service, self.limits, self._token), os.getpid()
        return self._front


async def _received(front: Front, call: _core.FrontCall, receive: Receive) -> Reply | None:
    """Read the body. Returns the answer with which it was refused."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return Reply(*call.refuse(_GONE, "the client has gone"))
        if refused := front.receive(call, message.get("body", b"")):
            return refused
        more = message.get("more_body", False)
    return None


async def _answered(front: Front, call: _core.FrontCall, receive: Receive) -> Reply:
    """Answer a call that is all there, unless its client goes first: then nothing more is computed for it."""
    answer = asyncio.ensure_future(front.answer(call))
    message = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answer, message}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done() and message.exception() is None and message.result()["type"] == "http.disconnect":
            return Reply(*call.refuse(_GONE, "the client has gone"))
        return await answer
    finally:
        answer.cancel()  # which forgets the call in the core
        message.cancel()
        await asyncio.wait({answer, message})
        if not message.cancelled():
            message.exception()  # of a server that has no more messages: asyncio would log it


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
