"""What each level of graph optimization adds to a session's creation: sessions at all levels in turns, in one process.

The first session opens the libraries and, on a GPU, makes the context; it is not counted.
"""

from __future__ import annotations

import time
from typing import Any

from . import _session

LEVELS = ("none", "basic", "extended", "all")
_NAMES = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_MOST_ROUNDS = 5


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Creates sessions at each level.

    Args:
        spec: "model" (path), "device", "settings" (the fields of `SessionSettings`), and "seconds", after which no
            further round begins.

    Returns:
        For each of `LEVELS` the seconds of its creations.
    """
    from ortmulti import GraphOptimizationLevel, SessionOptions

    def create(level: str) -> float:
        def change(options: SessionOptions) -> None:
            options.graph_optimization_level = getattr(GraphOptimizationLevel, _NAMES[level])

        begin = time.perf_counter()
        _session.create(spec, change)
        return time.perf_counter() - begin

    create("none")
    taken: dict[str, list[float]] = {level: [] for level in LEVELS}
    deadline = time.monotonic() + spec["seconds"]
    for number in range(_MOST_ROUNDS):
        if number and time.monotonic() >= deadline:
            break
        for level in LEVELS if number % 2 == 0 else LEVELS[::-1]:
            taken[level].append(create(level))
    return taken
