"""What clients of a server may ask for at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortmulti import checks
from ortmulti.errors import InvalidArgument

__all__ = ["Limits"]


@checks.known_fields
@dataclass(frozen=True)
class Limits:
    """What a client may ask for at most.

    Attributes:
        memory: Bytes of requests as they arrive, and of answers until they are sent, of all clients together; beyond it
            requests get 503; default 1 GiB.
        body: Bytes of a request, as sent and as decompressed; default 64 MiB.
        json: Bytes of JSON in a request; larger tensors have the binary form; default 16 MiB.
        tensors: Inputs, and outputs, of a request; default 1,024.
        texts: Texts of a request; default 2,048.
        concurrent: Requests under way; beyond it they get 503; default 1,024. Those that are no infer, such as texts,
            may be three quarters of it.
        header: Bytes of a request's line and headers; default 64 KiB.
        receive: Seconds that a request may take to arrive; default 60.
        send: Seconds in which a client takes 64 KiB of its answer, or the rest; default 60.
        idle: Seconds for which a connection without a request stays open; default 75.
        connections: Open connections; beyond it further ones are closed at once; default 10,000.
        streams: Calls at a time of a connection of gRPC; default 128.
        end: Seconds in which the server ends, whatever clients do; default 25.
    """

    memory: int = 1 << 30
    body: int = 64 << 20
    json: int = 16 << 20
    tensors: int = 1024
    texts: int = 2048
    concurrent: int = 1024
    header: int = 64 << 10
    receive: float = 60.0
    send: float = 60.0
    idle: float = 75.0
    connections: int = 10_000
    streams: int = 128
    end: float = 25.0

    def __post_init__(self) -> None:
        """Refuse what is no limit: `InvalidArgument`, or `InvalidType`."""
        for name in ("memory", "body", "json", "tensors", "concurrent", "header", "connections", "streams", "texts"):
            checks.integer(name, getattr(self, name), 1, checks.SIZE_MAX)
        for name in ("receive", "send", "idle", "end"):
            if checks.number(name, getattr(self, name)) == 0:
                raise InvalidArgument(f"{name} is more than 0 seconds, not 0")

    def of_core(self) -> dict[str, Any]:
        """Return those that the core has."""
        return {name: value for name, value in vars(self).items() if name != "texts"}
