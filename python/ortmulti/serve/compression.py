"""Compression of requests and answers by zlib, of both protocols."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from ortmulti.errors import InvalidArgument
from ortmulti.serve.service import Refused

__all__ = ["COMPRESSED_FROM", "compressed", "decompressed"]

# Bytes of an answer: a smaller one costs more to compress than it saves.
COMPRESSED_FROM = 16 << 10

_FIRST_STEP = 512
_MOST_STEP = 1 << 20
_WINDOWS = {b"gzip": zlib.MAX_WBITS + 16, b"deflate": zlib.MAX_WBITS}


def decompressed(body: memoryview, coding: bytes) -> Iterator[bytes]:
    """Decompress a body, in pieces of at most 1 MiB.

    Raises:
        Refused: The coding is another one.
        InvalidArgument: The body is not of this coding.
    """
    window = _WINDOWS.get(coding)
    if window is None:
        raise Refused(415, f"the content encoding is gzip or deflate, not {coding.decode('latin-1')[:20]}")
    at, first = 0, True
    while at < len(body) or first:  # gzip may have several members
        inflate, step, over, first = zlib.decompressobj(window), _FIRST_STEP, False, False
        while not over:
            part = body[at : at + step]
            try:
                piece = inflate.decompress(part, _MOST_STEP)
            except zlib.error as error:
                raise InvalidArgument(f"the body is not {coding.decode()}: {error}") from None
            yield piece
            over = inflate.eof
            at += len(part) - len(inflate.unused_data if over else inflate.unconsumed_tail)
            if at == len(body) and len(piece) < _MOST_STEP and not over:
                raise InvalidArgument(f"the body is not {coding.decode()}: it is incomplete")
            step = min(2 * step, _MOST_STEP)  # so that little is read twice, however small the members are


def compressed(content: bytes, coding: str) -> bytes:
    """Compress an answer."""
    deflate = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[coding.encode()])
    return deflate.compress(content) + deflate.flush()
