"""The core's server in Python: its listening sockets, calls that another server received, and what Python answers.

The core answers `infer` and health. All else comes here, into an event loop that cannot hold those up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti import _core
from ortmulti.errors import ClosedError, Error, LibraryError
from ortmulti.pool.pool import members_of, span_of
from ortmulti.serve import together
from ortmulti.serve.certificate import Certificate
from ortmulti.serve.compression import COMPRESSED_FROM, compressed, decompressed
from ortmulti.serve.http import Http
from ortmulti.serve.limits import Limits
from ortmulti.serve.log import log_access, shown
from ortmulti.serve.reply import Reply
from ortmulti.serve.service import Refused, Service, status_and_text
from ortmulti.serve.text_routes import LONG_BODIES, ROUTES, failure

if TYPE_CHECKING:
    from ortmulti.pool.pool import RequestSpan
    from ortmulti.serve.rpc import Rpc

__all__ = ["Front", "check_built", "in_thread"]

LOGGER = logging.getLogger("ortmulti.serve")

# Seconds between two looks at what health says, and at the access log.
_LOOK = 0.2
# Seconds between two looks at the files of TLS.
_RENEW = 60
_TRACED = (b"traceparent", b"tracestate", b"baggage")


def check_built() -> None:
    """Raise LibraryError if this build has no server."""
    if not hasattr(_core, "Front"):
        raise LibraryError(
            "this build of ortmulti has no server: nlohmann/json's or nghttp2's headers were missing as it was "
            "built (apt-get install nlohmann-json3-dev libnghttp2-dev, and install ortmulti again)"
        )


class Front:
    """Answers calls: those of its listening sockets, for which it is made in an event loop, and those of other servers.

    Args:
        service: What answers.
        limits: See `Limits`.
        token: Clients send it as ``Authorization: Bearer TOKEN``, but for health; None: nobody needs one.
        rpc: What answers over gRPC; None: there is no gRPC.
        http, grpc: Descriptors of sockets that listen, which this takes.
        allowed_hosts: As `Settings` has them.
        certificate, key: Files of TLS, for both protocols, which are read again when they have changed; None: plain.
        access_log: Whether each answer of the sockets makes a record of the logger ``ortmulti.serve.access``.

    Raises:
        InvalidArgument: The files are no certificate and its key.
        LibraryError: nghttp2 or OpenSSL is missing, or this build has no server.
    """

    def __init__(
        self,
        service: Service,
        limits: Limits,
        token: str | None = None,
        *,
        rpc: Rpc | None = None,
        http: Sequence[int] = (),
        grpc: Sequence[int] = (),
        allowed_hosts: Sequence[str] = (),
        certificate: Path | None = None,
        key: Path | None = None,
        access_log: bool = False,
    ) -> None:
        check_built()
        self._service = service
        self._http, self._rpc = Http(service, limits), rpc
        self._most = limits.body
        self._asked: dict[_core.FrontCall, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        self._tasks: dict[_core.FrontCall, asyncio.Task[None]] = {}
        self._access_log = access_log
        self._core = _core.Front(
            http=list(http),
            grpc=list(grpc),
            limits=_core.FrontLimits(**limits.of_core()),
            token=token or "",
            allowed_hosts=list(allowed_hosts),
            certificate=str(certificate or ""),
            key=str(key or ""),
            compressed_from=COMPRESSED_FROM,
            long_bodies=LONG_BODIES,
            loops=loops(),
            access_log=access_log,
            traces="opentelemetry" in sys.modules,
        )
        service.core_answers = self._core.answers
        service.core_counts = self._core.counts_of
        service.texts.core_counts = self._core.counts_of_texts
        if http or grpc:
            self._loop = asyncio.get_running_loop()
            self._looks = [asyncio.create_task(self._look())]
            if certificate and key:
                self._looks.append(asyncio.create_task(self._renew(Certificate(certificate, key))))
        takes = partial(_take_calls, self._core, weakref.ref(self))
        self._threads = [threading.Thread(target=takes, name="ortmulti-serve-calls", daemon=True)]
        self._threads[0].start()
        if http:
            self._threads += together.start(service, self._core, limits.texts)
        weakref.finalize(self, _end, self._core, os.getpid())

    def put_model(self, name: str, version: str = "") -> _core.Pool:
        """Have the core answer `infer` of this model, as it is loaded now. Returns its pool.

        Raises:
            Refused: It is not loaded, or has another version.
        """
        interface, present = self._service.interface(name, version)
        defaults = self._service.defaults_of(name)
        pool = members_of(interface.pool).core
        self._core.put_model(
            name,
            present,
            pool,
            joins=interface.joins,
            counts_rows=interface.batching is not None,
            recurrent=interface.recurrent,
            max_rows=defaults.max_batch_size,
            timeout=defaults.timeout,
            may_override=defaults.may_override,
            priority=defaults.priority,
        )
        return pool

    def look(self) -> None:
        """Say to clients whether the server is ready."""
        self._core.set_ready(self._service.is_ready())

    async def end(self) -> None:
        """Answer what a byte was read of, within the limit ``end``; then nothing listens and nothing is open."""
        await in_thread(self._core.end)
        for task in [*self._looks, *self._tasks.copy().values()]:
            task.cancel()
        for thread in self._threads:
            await in_thread(thread.join)
        self._log()

    # Calls of other servers, from any event loop.

    def call(
        self, grpc: bool, method: str, path: str, headers: list[tuple[bytes, bytes]], peer: str, streamed: bool = False
    ) -> _core.FrontCall:
        """Make a call. ``path`` is decoded, ``peer`` stands for its connection."""
        return self._core.call(grpc, method, path, headers, peer, streamed)

    def begin(self, call: _core.FrontCall) -> Reply | None:
        """Look at a call before its body is read. Returns the answer with which it is refused."""
        return _reply(self._core.begin(call))

    def receive(self, call: _core.FrontCall, body: bytes) -> Reply | None:
        """Add to a call's body. Returns the answer with which that is refused."""
        return _reply(self._core.receive(call, body))

    async def answer(self, call: _core.FrontCall) -> Reply:
        """Answer a call that is all there."""
        try:
            if plain := await _compressed(call):
                return plain
            headers = dict(call.headers)
            infer = call.target is not None
            coding = _coding_of(call, headers)
            if coding not in (b"", b"identity"):
                call, refused = await asyncio.to_thread(self._decompressed, call, coding)
                if refused:
                    return refused
            elif infer and (coding or not call.asked):
                call = self._core.instead_of(call, None)
            return await (self._infer(call, headers) if infer else self._answer_other(call))
        except Exception as error:
            status, text = status_and_text(error)
            if status == 500:
                LOGGER.warning("%s: %s", shown(call.path), error, exc_info=not isinstance(error, Error))
            reply = Reply(*call.refuse(status, text))
            reply.headers.extend(error.headers if isinstance(error, Refused) else ())
            error.__traceback__ = None  # its frames would keep the body until garbage is collected
            return reply

    def _decompressed(self, call: _core.FrontCall, coding: bytes) -> tuple[_core.FrontCall, Reply | None]:
        body, size = call.body, 0
        for piece in decompressed(body, coding):  # once for its size, so that its memory does not grow
            size += len(piece)
            if size > self._most:
                break
        plain = self._core.instead_of(call, size)
        refused = self.begin(plain)
        for piece in () if refused else decompressed(body, coding):
            if refused := self.receive(plain, piece):
                break
        return plain, refused

    async def _answer_other(self, call: _core.FrontCall) -> Reply:
        if call.health:
            self.look()
        if call.asked and (reply := await self._ask(call)):
            return reply
        if not call.grpc:
            return await self._http.respond(call)
        assert self._rpc is not None
        return await self._rpc.respond(call)

    async def _infer(self, call: _core.FrontCall, headers: Mapping[bytes, bytes]) -> Reply:
        span = self._span(call, headers)
        try:
            reply = await self._run(call)
        except BaseException as error:
            if span is not None:
                span.end(None, error, isinstance(error, asyncio.CancelledError), None)
            raise
        if span is not None:
            failure = None if call.timing else Error(reply.message or reply.body.decode(errors="replace"))
            span.end(None, failure, False, call.timing)
        return reply

    async def _run(self, call: _core.FrontCall) -> Reply:
        put = None
        while (reply := await self._ask(call)) is None:
            # The core does not know the model, or knows one that was closed: another one may have taken its place.
            name, version = map(_text, call.target or ())
            before, put = put, await asyncio.to_thread(self.put_model, name, version)
            if put is before:
                raise Refused(503, "the service cannot take the request now")
        return reply

    async def _ask(self, call: _core.FrontCall) -> Reply | None:
        """Return the core's answer; None: it is to come from Python."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._asked[call] = loop, future
        try:
            self._core.ask(call)
            return _reply(await future) or await _compressed(call)
        except BaseException:  # cancelled
            self._core.forget(call)
            raise
        finally:
            self._asked.pop(call, None)

    def _span(self, call: _core.FrontCall, headers: Mapping[bytes, bytes]) -> RequestSpan | None:
        """Begin the request's span, of the caller's trace, where `ortmulti.otel` records any."""
        if "ortmulti.otel" not in sys.modules:
            return None
        from opentelemetry import context, propagate

        caller = {key.decode(): headers[key].decode("latin-1") for key in _TRACED if key in headers}
        token = context.attach(propagate.extract(caller))
        try:
            return span_of(self._service.interface(*map(_text, call.target or ()))[0].pool)
        except Refused:  # the core's answer will say so
            return None
        finally:
            context.detach(token)

    # Calls of the sockets, for which the core has no answer.

    def take(self, events: list[tuple[_core.FrontCall, bool, Any, Any]]) -> None:
        """Take what the core hands over. Called by one thread. A loop is woken once for all that is there."""
        for_loops: dict[asyncio.AbstractEventLoop, list[tuple[Callable[..., None], Any]]] = {}
        for call, gone, reply, error in events:
            # Where the model was closed, another one may have taken its place.
            if error is not None and not isinstance(error, ClosedError):
                form = ROUTES[_text(call.path).strip("/") or "embed"].form
                self._core.reply(call, *failure(error, call, form))
            elif not call.asked:
                for_loops.setdefault(self._loop, []).append((self._drop if gone else self._begin, (call,)))
            elif asked := self._asked.pop(call, None):
                loop, future = asked
                for_loops.setdefault(loop, []).append((_settle, (future, reply)))
        for loop, calls in for_loops.items():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_call_all, calls)

    def _begin(self, call: _core.FrontCall) -> None:
        self._tasks[call] = task = asyncio.create_task(self._answer(call))
        task.add_done_callback(lambda _done: self._tasks.pop(call, None))  # also before it began

    def _drop(self, call: _core.FrontCall) -> None:
        if task := self._tasks.get(call):
            task.cancel()

    async def _answer(self, call: _core.FrontCall) -> None:
        try:
            reply = await self.answer(call)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # panics of Rust too; else its client would wait for ever, and its place be taken
            LOGGER.exception("the answer to %s failed", call.path)
            reply = Reply(500, [], b"", "the request failed")
        self._core.reply(call, *reply)

    # What is looked at now and then.

    async def _look(self) -> None:
        while True:
            try:
                self.look()
                self._log()
            except Exception:  # else nobody would look any more
                LOGGER.exception("looking at the models' states failed")
            await asyncio.sleep(_LOOK)

    async def _renew(self, certificate: Certificate) -> None:
        while True:
            await asyncio.sleep(_RENEW)
            await asyncio.to_thread(certificate.look, self._core.renew_certificate)

    def _log(self) -> None:
        if not self._access_log:
            return
        for at, peer, method, path, sent_id, status, size, seconds in self._core.take_access_log():
            log_access(peer.split(" ")[0], shown(method), shown(path), status, size, seconds, shown(sent_id), at)


def _take_calls(core: _core.Front, front: weakref.ref[Front]) -> None:
    while events := core.take():
        if (owner := front()) is None:
            return
        try:
            owner.take(events)
        except Exception:  # of these calls alone: others wait for theirs
            LOGGER.exception("calls could not be taken")
        del events, owner  # the calls count in the memory for clients


def _call_all(calls: list[tuple[Callable[..., None], Any]]) -> None:
    for call, arguments in calls:
        call(*arguments)


def _end(core: _core.Front, process: int) -> None:
    if os.getpid() == process:  # a fork's child has none of its threads
        core.end()


def _settle(future: asyncio.Future[Any], reply: Any) -> None:
    if not future.done():
        future.set_result(reply)


def _reply(found: Any) -> Reply | None:
    return None if found is None else Reply(*found)


def _coding_of(call: _core.FrontCall, headers: Mapping[bytes, bytes]) -> bytes:
    if call.grpc:
        return headers.get(b"grpc-encoding", b"") if call.compressed else b""
    return headers.get(b"content-encoding", b"").lower()


async def _compressed(call: _core.FrontCall) -> Reply | None:
    """Return the core's answer to the call, which is to be compressed, if there is one."""
    if (plain := call.plain()) is None:
        return None
    reply, coding = Reply(*plain[0]), plain[1]
    content = await asyncio.to_thread(compressed, reply.body, coding)
    return Reply(reply.status, [*reply.headers, (b"content-encoding", coding.encode())], content)


def _text(sent: bytes) -> str:
    return sent.decode(errors="replace")


async def in_thread(call: Callable[[], object]) -> None:
    """Call it in a thread of its own: those of `asyncio.to_thread` may all be in use."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "ortmulti-serve-end") as executor:
        await loop.run_in_executor(executor, call)


def loops() -> int:
    """Return how many event loops each protocol has: one for four cores of this process, and at most eight."""
    return min(8, max(1, len(os.sched_getaffinity(0)) // 4))
