"""What `ortmulti serve` listens with, and what of its clients' calls Python answers.

The core answers `infer` and health. All else comes here, into an event loop that cannot hold those up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti.errors import Error, LibraryError
from ortmulti.pool.pool import members_of
from ortmulti.serve.compression import COMPRESSED_FROM, compressed, decompressed
from ortmulti.serve.http import ACCESS, COUNT, Application, Scope
from ortmulti.serve.limits import Limits
from ortmulti.serve.rpc import TRACED, Rpc
from ortmulti.serve.service import Service, status_and_text

__all__ = ["Front", "in_thread"]

LOGGER = logging.getLogger("ortmulti.serve")

# Seconds between two looks at what health says, and at the access log.
_LOOK = 0.2
# Seconds between two looks at the files of TLS.
_RENEW = 60


class Certificate:
    """Files of TLS, which may be renewed.

    Args:
        files: The files.
    """

    def __init__(self, *files: Path) -> None:
        self._files = files
        self._seen = [_state(file) for file in files]

    def look(self, renew: Callable[[], None]) -> None:
        """Call `renew` if a file has changed since the last look. Its error is logged."""
        seen = [_state(file) for file in self._files]
        if seen == self._seen:
            return
        self._seen = seen
        try:
            renew()
        except Error as error:
            LOGGER.error("the renewed certificate is not used, and the one from before stays: %s", error)
        else:
            LOGGER.info("new connections have the renewed certificate in %s", self._files[0])


class Front:
    """The listening sockets of a server.

    Args:
        service: What answers.
        http, grpc: Descriptors of sockets that listen, which this takes.
        limits: See `Limits`.
        token: Clients send it as ``Authorization: Bearer TOKEN``, but for health; None: nobody needs one.
        allowed_hosts: As `Settings` has them.
        certificate, key: Files of TLS, for both protocols, which are read again when they have changed; None: plain.
        access_log: Whether each answer makes a record of the logger ``ortmulti.serve.access``.

    Raises:
        InvalidArgument: The files are no certificate and its key.
        LibraryError: nghttp2 or OpenSSL is missing, or this build has no server.
    """

    def __init__(
        self,
        service: Service,
        *,
        http: list[int],
        grpc: list[int],
        limits: Limits,
        token: str | None,
        allowed_hosts: Sequence[str],
        certificate: Path | None,
        key: Path | None,
        access_log: bool,
    ) -> None:
        if not hasattr(_core, "Front"):
            raise LibraryError(
                "this build of ortmulti has no server: nlohmann/json's or nghttp2's headers were missing as it was "
                "built (apt-get install nlohmann-json3-dev libnghttp2-dev, and install ortmulti again)"
            )
        self._service = service
        self._application = Application(service, limits)
        self._rpc = Rpc(service, limits.tensors)
        self._most_bytes = limits.body
        self._tasks: dict[_core.FrontCall, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._access_log = access_log
        self._certificate = Certificate(*(file for file in (certificate, key) if file))
        self._front = _core.Front(
            http=http,
            grpc=grpc,
            limits=_core.FrontLimits(**vars(limits)),
            token=token or "",
            allowed_hosts=list(allowed_hosts),
            certificate=str(certificate or ""),
            key=str(key or ""),
            compressed_from=COMPRESSED_FROM,
            loops=loops(),
            access_log=access_log,
            traces="opentelemetry" in sys.modules,
        )
        service.other_answers = self._front.answers
        service.other_counts = self._front.counts_of
        self._thread = threading.Thread(target=self._take_calls, name="ortmulti-serve-calls", daemon=True)
        self._thread.start()
        self._looks = [asyncio.create_task(self._look())]
        if certificate:
            self._looks.append(asyncio.create_task(self._renew()))

    def put_model(self, name: str) -> None:
        """Have the core answer `infer` of this model, as it is loaded now."""
        interface, version = self._service.interface(name)
        defaults = self._service.defaults_of(name)
        self._front.put_model(
            name,
            version,
            members_of(interface.pool).core,
            joins=interface.joins,
            counts_rows=interface.batching is not None,
            recurrent=interface.recurrent,
            max_rows=defaults.max_batch_size,
            timeout=defaults.timeout,
            may_override=defaults.may_override,
            priority=defaults.priority,
        )

    def look(self) -> None:
        """Say to clients whether the server is ready."""
        self._front.set_ready(self._service.is_ready())

    async def end(self) -> None:
        """Answer what a byte was read of, within the limit ``end``; then nothing listens and nothing is open."""
        await in_thread(self._front.end)
        for task in [*self._looks, *self._tasks.copy().values()]:
            task.cancel()
        await in_thread(self._thread.join)
        self._log()

    # Calls.

    def _take_calls(self) -> None:
        while (event := self._front.next()) is not None:
            call, gone = event
            try:
                self._loop.call_soon_threadsafe(self._drop if gone else self._begin, call)
            except RuntimeError:  # the loop has ended
                return
            del event, call  # it counts in the memory for clients

    def _begin(self, call: _core.FrontCall) -> None:
        self._tasks[call] = task = asyncio.create_task(self._answer(call))
        task.add_done_callback(lambda _done: self._tasks.pop(call, None))  # also before it began

    def _drop(self, call: _core.FrontCall) -> None:
        if task := self._tasks.get(call):
            task.cancel()

    async def _answer(self, call: _core.FrontCall) -> None:
        try:
            await (self._answer_rpc(call) if call.grpc else self._answer_http(call))
        except Exception:  # else its client would wait for ever, and its place be taken
            LOGGER.exception("the answer to %s failed", call.path)
            self._front.reply(call, 500, [], b"", "the request failed")

    async def _answer_http(self, call: _core.FrontCall) -> None:
        if call.plain is not None:
            accepted = dict(call.headers).get(b"accept-encoding", b"")
            self._reply_http(call, 200, *await compressed(*call.plain, accepted))
            return
        host, _, port = call.peer.rpartition(" ")
        scope: Scope = {
            "type": "http",
            "method": call.method,
            "path": call.path.decode("utf-8", "replace"),
            "headers": call.headers,
            "client": (host, int(port)) if port.isdigit() else None,
            "extensions": {COUNT: call.count},
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": call.body}

        self._reply_http(call, *await self._application.respond(scope, receive))

    def _reply_http(self, call: _core.FrontCall, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._front.reply(call, status, [(name.decode(), value.decode("latin-1")) for name, value in headers], body, "")

    async def _answer_rpc(self, call: _core.FrontCall) -> None:
        trace: Mapping[str, str] = {
            name.decode(): value.decode("latin-1") for name, value in call.headers if name.decode() in TRACED
        }
        try:
            sent = call.body
            if call.compressed:
                coding = dict(call.headers)[b"grpc-encoding"]
                sent = bytes(await asyncio.to_thread(decompressed, sent, coding, self._most_bytes, call.count))
            path = call.path.decode("latin-1")
            body = await self._rpc.respond(path, sent, trace, call.peer, call.count)
        except Exception as error:
            status, text = status_and_text(error)
            if status == 500:
                LOGGER.warning("%s", error)
            self._front.reply(call, status, [], b"", text)
        else:
            self._front.reply(call, 200, [], body, "")

    # What is looked at now and then.

    async def _look(self) -> None:
        while True:
            try:
                self.look()
                self._log()
            except Exception:  # else nobody would look any more
                LOGGER.exception("looking at the models' states failed")
            await asyncio.sleep(_LOOK)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW)
            await asyncio.to_thread(self._certificate.look, self._front.renew_certificate)

    def _log(self) -> None:
        if not self._access_log:
            return
        for peer, method, path, status, size, seconds in self._front.take_access_log():
            ACCESS.info(
                "%s %s %s %d %d %.1f ms", peer.split(" ")[0], _shown(method), _shown(path), status, size, seconds * 1e3
            )


def _state(file: Path) -> tuple[int, ...]:
    """Return what is another if the file was replaced or written; () where it cannot be looked at."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _shown(sent: bytes) -> str:
    """Return what a client sent, for a line of the log."""
    return sent.decode("latin-1").encode("unicode_escape").decode("ascii")


async def in_thread(call: Callable[[], object]) -> None:
    """Call it in a thread of its own: those of `asyncio.to_thread` may all be in use."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, "ortmulti-serve-end") as executor:
        await loop.run_in_executor(executor, call)


def loops() -> int:
    """Return how many event loops each protocol has: one for four cores of this process, and at most eight."""
    return min(8, max(1, len(os.sched_getaffinity(0)) // 4))
