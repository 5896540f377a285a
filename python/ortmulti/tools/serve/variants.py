"""The pools that are compared: a backend with what it is told, under one name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortmulti.errors import InvalidArgument

BACKENDS = ("core", "threads", "processes")

_SYNTAX = "a backend (core, threads or processes), then any of +graph, +sessions=N, +in_flight=N"


@dataclass(frozen=True)
class Variant:
    """What a pool is loaded with.

    Attributes:
        name: as the user wrote it.
        backend: one of `BACKENDS`.
        cuda_graph: whether runs are captured as CUDA graphs.
        sessions: sessions on each device.
        in_flight: requests that a session prepares and runs at once; None leaves the pool's default.
    """

    name: str
    backend: str = "core"
    cuda_graph: bool = False
    sessions: int = 1
    in_flight: int | None = None

    def load_arguments(self) -> dict[str, Any]:
        """Arguments of `ortmulti.load`; what is its default is left out."""
        arguments: dict[str, Any] = {}
        if self.backend != "core":
            arguments["backend"] = self.backend
        if self.cuda_graph:
            arguments["cuda_graph"] = True
        if self.in_flight is not None:
            arguments["in_flight"] = self.in_flight
        return arguments


def parse_variant(text: str) -> Variant:
    """The variant that `text` names: "threads", "core+graph", "core+sessions=2+in_flight=1".

    Raises:
        InvalidArgument: it names none.
    """
    name = text.strip()
    backend, *parts = name.split("+")
    if backend not in BACKENDS:
        raise InvalidArgument(f"{name!r} is no variant; one is {_SYNTAX}")
    given: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if key == "graph" and not equals:
            given["cuda_graph"] = True
        elif key in ("sessions", "in_flight") and value.isdecimal() and int(value) >= 1:
            given[key] = int(value)
        else:
            raise InvalidArgument(f"{name!r}: {part!r} says nothing about a variant; one is {_SYNTAX}")
    return Variant(name, backend, **given)
