"""uvicorn's HTTP protocol with limits of its own, and an end that loses no request."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ortmulti.serve.http import Limits

__all__ = ["protocol_with"]

_REFUSALS = {
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
}


def protocol_with(limits: Limits, answers: Counter[tuple[str, str]]) -> type[HttpToolsProtocol]:
    """Return the class of a server's connections, which count what they answer themselves."""

    class LimitedProtocol(HttpToolsProtocol):
        """One connection. uvicorn itself waits for ever for a request, and takes headers of any size."""

        _head = 0  # bytes of the request's line and headers
        _receiving = False  # a byte of a request was read, and not yet its last one
        _ends = False  # after the request that is being received
        _slow: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.close()
                return
            self.timeout_keep_alive_task = self.loop.call_later(limits.idle, self.timeout_keep_alive_handler)

        def connection_lost(self, exc: Exception | None) -> None:
            self._received()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._receiving and self._head >= 0:  # the headers go on
                self._head += len(data)
                if self._head > limits.header:
                    self._refuse(431)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._head = 0
            self._receiving = True
            self._slow = self.loop.call_later(limits.receive, self._refuse, 408)

        def on_headers_complete(self) -> None:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > limits.header:
                self._refuse(431)
                return
            self._head = -1
            super().on_headers_complete()
            if self._ends:
                self.cycle.keep_alive = False

        def on_message_complete(self) -> None:
            self._received()
            super().on_message_complete()

        def shutdown(self) -> None:
            if self._receiving and self._answers() is None:
                self._ends = True
            else:
                super().shutdown()

        def send_400_response(self, msg: str) -> None:
            answers["http", "400"] += 1
            super().send_400_response(msg)

        def _answers(self) -> Any:
            """Return what answers a request now; None: nothing does."""
            cycle: Any = self.cycle  # None before the first request
            return None if cycle is None or cycle.response_complete else cycle

        def _received(self) -> None:
            self._receiving = False
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None

        def _refuse(self, status: int) -> None:
            self._received()
            if self.transport.is_closing():
                return
            answering = self._answers()
            if answering is None or not answering.response_started:
                answers["http", str(status)] += 1
                reason = _REFUSALS[status]
                text = b'{"error":"%s"}' % reason.lower()
                lines = (
                    b"HTTP/1.1 %d %s" % (status, reason),
                    b"content-type: application/json",
                    b"content-length: %d" % len(text),
                    b"connection: close",
                    b"",
                    text,
                )
                self.transport.write(b"\r\n".join(lines))
            self.transport.close()

    return LimitedProtocol
