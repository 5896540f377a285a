"""Dimensions of a case: the load, and the variant that gets it: a pool, or onnxruntime in threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti.errors import InvalidArgument

ARRIVALS = ("poisson", "constant")
"""Independent of each other, at exponential distances; at equal distances, the first at 0."""

NANOSECONDS = 1_000_000_000


def parse_rate(text: str) -> tuple[float, bool]:
    """Return the rate of an open loop, and whether it is a share of the closed loop's rate in the same case and round.

    Args:
        text: "200" or "200/s" requests a second; "0.8x" of the closed loop's rate.

    Raises:
        InvalidArgument: the text is not a rate.
    """
    name = text.strip()
    relative = name.endswith("x")
    try:
        rate = float(name.removesuffix("x") if relative else name.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise InvalidArgument(f"{name!r} is not a rate, such as 200 (requests a second) or 0.8x (of the closed loop's)")
    return rate, relative


def arrival_times(rate: float, seconds: float, arrivals: str, seed: int) -> NDArray[np.int64]:
    """When requests arrive, in nanoseconds from the start, ascending, for so many seconds; see `ARRIVALS`."""
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


def parse_variant(text: str) -> dict[str, Any]:
    """Return what a variant's name means, such as "threads", "core+graph" or "core+sessions=2+in_flight=1".

    Returns:
        "backend", one of `BACKENDS`: "core" and "processes" are pools, "threads" is no pool but
        `measure_pool.OnnxruntimeThreads`. "sessions": on each device. Further arguments of `ortmulti.load`.

    Raises:
        InvalidArgument: the text is not a variant.
    """
    backend, *parts = text.split("+")
    if backend not in BACKENDS:
        raise InvalidArgument(f"{text!r} is not a variant; one is {_SYNTAX}")
    is_pool = backend != "threads"
    found: dict[str, Any] = {"backend": backend, "sessions": 1}
    for part in parts:
        key, _, value = part.partition("=")
        if is_pool and part in ("graph", "graph=off"):
            found["cuda_graph"] = part == "graph"
        elif (key == "sessions" or (is_pool and key == "in_flight")) and value.isdecimal() and int(value) >= 1:
            found[key] = int(value)
        else:
            raise InvalidArgument(f"{text!r}: {part!r} is not an option of {backend}; a variant is {_SYNTAX}")
    return found
