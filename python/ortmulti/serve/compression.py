"""Compression of requests and answers by zlib, of both protocols."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from ortmulti.errors import InvalidArgument
from ortmulti.serve.service import Refused

__all__ = ["COMPRESSED_FROM", "compressed", "decompressed"]

# Bytes of an answer: a smaller one costs more to compress than it saves.
COMPRESSED_FROM = 16 << 10

_FIRST_STEP = 512
_MOST_STEP = 1 << 20
_WINDOWS = {b"gzip": zlib.MAX_WBITS + 16, b"deflate": zlib.MAX_WBITS}


def decompressed(body: bytes | memoryview, coding: bytes, limit: int, count: Callable[[int], bool]) -> memoryview:
    """Return a body without its content coding.

    Args:
        body: The body, as sent.
        coding: Its coding: gzip or deflate.
        limit: Bytes that it may have then.
        count: Counts bytes of memory; False: there is no room for them.

    Raises:
        InvalidArgument: It is not in that coding.
        Refused: There is no such coding here, or it becomes too large.
    """
    window = _WINDOWS.get(coding)
    if window is None:
        raise Refused(415, f"the content encoding is gzip or deflate, not {coding.decode('latin-1')[:20]}")
    view, plain = memoryview(body), bytearray()
    at, first = 0, True
    while at < len(view) or first:  # gzip may have several members
        inflate, step, over, first = zlib.decompressobj(window), _FIRST_STEP, False, False
        while not over:
            part, most = view[at : at + step], min(_MOST_STEP, limit + 1 - len(plain))
            try:
                piece = inflate.decompress(part, most)
            except zlib.error as error:
                raise InvalidArgument(f"the body is not {coding.decode()}: {error}") from None
            if not count(2 * len(piece)):  # it is copied as it grows
                raise Refused(503, "the server has no memory left for requests, try again later")
            plain += piece
            if len(plain) > limit:
                raise Refused(413, f"the body has more than the {limit} bytes that are allowed, decompressed")
            over = inflate.eof
            at += len(part) - len(inflate.unused_data if over else inflate.unconsumed_tail)
            if at == len(view) and len(piece) < most and not over:
                raise InvalidArgument(f"the body is not {coding.decode()}: it is incomplete")
            step = min(2 * step, _MOST_STEP)  # so that little is read twice, however small the members are
    return memoryview(plain)


async def compressed(
    headers: list[tuple[bytes, bytes]], content: bytes, accepted: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Compress an answer by the first coding that its client accepts; a small one stays as it is.

    Args:
        headers: The headers.
        content: The body.
        accepted: Value of the request's header Accept-Encoding.

    Returns:
        The headers and the body that are sent.
    """
    coding = _accepted(accepted)
    if coding is None or len(content) < COMPRESSED_FROM:
        return headers, content
    return [*headers, (b"content-encoding", coding)], await asyncio.to_thread(_compressed, content, coding)


def _accepted(header: bytes) -> bytes | None:
    for part in header.lower().replace(b" ", b"").split(b","):
        coding, _, weight = part.partition(b";")
        if coding in _WINDOWS and weight.rstrip(b".0") != b"q=":
            return coding
    return None


def _compressed(content: bytes, coding: bytes) -> bytes:
    deflate = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[coding])
    return deflate.compress(content) + deflate.flush()
