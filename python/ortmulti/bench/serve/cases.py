"""Dimensions of a case: the load, and the variant that gets it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortmulti.errors import InvalidArgument

ARRIVALS = ("poisson", "constant")

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Load:
    """One kind of load.

    Attributes:
        kind: "closed": a constant number of requests, `in_flight` for each session, is in flight. "open": requests
            arrive independently of earlier answers, `rate` a second.
        relative: whether `rate` is a share of the closed loop's rate in the same case and round.
        arrivals: of an open loop, one of `ARRIVALS`: "poisson": independent of each other, at exponential distances;
            "constant": at equal distances, the first at 0.
    """

    kind: Literal["closed", "open"]
    in_flight: int = 0
    rate: float = 0.0
    relative: bool = False
    arrivals: str = "poisson"

    @property
    def name(self) -> str:
        """The name in tables."""
        if self.kind == "closed":
            return f"closed, {self.in_flight} a session"
        return f"open, {self.rate:g}x" if self.relative else f"open, {self.rate:g}/s"

    def at(self, capacity: float) -> Load:
        """Return the same load in requests per second; `capacity` is the closed loop's rate."""
        return replace(self, rate=self.rate * capacity, relative=False) if self.relative else self


def parse_rate(text: str, arrivals: str = "poisson") -> Load:
    """Return the open loop that `text` means: "200" or "200/s" requests a second, "0.8x" of the closed loop's rate.

    Raises:
        InvalidArgument: the text is not a rate, or `arrivals` is not one of `ARRIVALS`.
    """
    if arrivals not in ARRIVALS:
        raise InvalidArgument(f"arrivals are {' or '.join(ARRIVALS)}, not {arrivals!r}")
    name = text.strip()
    relative = name.endswith("x")
    try:
        rate = float(name.removesuffix("x") if relative else name.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise InvalidArgument(f"{name!r} is not a rate, such as 200 (requests a second) or 0.8x (of the closed loop's)")
    return Load("open", rate=rate, relative=relative, arrivals=arrivals)


def arrival_times(rate: float, seconds: float, arrivals: str, seed: int) -> NDArray[np.int64]:
    """When requests arrive, in nanoseconds from the start, ascending, for so many seconds; see `Load.arrivals`."""
    if arrivals == "constant":
        times = np.arange(int(np.ceil(rate * seconds))) / rate
        return np.asarray(times * NANOSECONDS, np.int64)
    generator = np.random.default_rng(seed)
    # Poisson's process over a stretch of time: a Poisson number of places that are equally likely everywhere.
    times = np.sort(generator.random(generator.poisson(rate * seconds))) * seconds
    return np.asarray(times * NANOSECONDS, np.int64)


BACKENDS = ("core", "threads", "processes")

_SYNTAX = (
    "a backend (core, threads or processes), then any of +graph, +sessions=N, +in_flight=N; threads take +sessions=N"
)


@dataclass(frozen=True)
class Variant:
    """The configuration of a pool, or of onnxruntime in threads.

    Attributes:
        name: as the user wrote it.
        backend: one of `BACKENDS`. "core" and "processes" are `ortmulti.load`'s. "threads": no pool but
            `measure_pool.OnnxruntimeThreads`.
        cuda_graph: whether runs are captured as CUDA graphs; None: the pool's default.
        sessions: sessions on each device.
        in_flight: requests that a session handles at the same time; None: the pool's default.
    """

    name: str
    backend: str = "core"
    cuda_graph: bool | None = None
    sessions: int = 1
    in_flight: int | None = None

    def load_arguments(self) -> dict[str, Any]:
        """Arguments of `ortmulti.load` for a pool, without those that have its default."""
        backend = None if self.backend == "core" else self.backend
        given = {"backend": backend, "cuda_graph": self.cuda_graph, "in_flight": self.in_flight}
        return {name: value for name, value in given.items() if value is not None}


def parse_variant(text: str) -> Variant:
    """Return the variant that `text` names: "threads", "core+graph", "core+sessions=2+in_flight=1".

    Raises:
        InvalidArgument: the text is not a variant.
    """
    name = text.strip()
    backend, *parts = name.split("+")
    if backend not in BACKENDS:
        raise InvalidArgument(f"{name!r} is not a variant; one is {_SYNTAX}")
    is_pool = backend != "threads"
    given: dict[str, Any] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if is_pool and part in ("graph", "graph=off"):
            given["cuda_graph"] = part == "graph"
        elif (key == "sessions" or (is_pool and key == "in_flight")) and value.isdecimal() and int(value) >= 1:
            given[key] = int(value)
        else:
            raise InvalidArgument(f"{name!r}: {part!r} is not an option of {backend}; a variant is {_SYNTAX}")
    return Variant(name, backend, **given)
