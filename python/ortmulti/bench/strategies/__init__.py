"""Ways to create sessions on several devices and to run them, behind one small protocol.

Modules are imported by need: a measurement of one strategy loads nothing of another.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from ortmulti.errors import InvalidArgument

from .base import Creation, FirstRun, Strategy
from .onnxruntime_sessions import SessionSettings

__all__ = ["Creation", "FirstRun", "SessionSettings", "Strategy", "check_name", "names", "open_strategy"]

# name -> (module of this package, class). The order is the one in which tables and plots show them.
_REGISTRY = {
    "sequential": ("base", "Sequential"),
    "threads": ("base", "Threads"),
    "processes": ("processes", "Processes"),
    "native": ("core", "Native"),
    "shared": ("core", "Shared"),
}


def names() -> tuple[str, ...]:
    """Return the names of the strategies, in the order of the tables."""
    return tuple(_REGISTRY)


def check_name(name: str) -> None:
    """Raise `InvalidArgument` if there is no strategy called `name`."""
    if name not in _REGISTRY:
        raise InvalidArgument(f"unknown strategy {name!r}; there are {', '.join(_REGISTRY)}")


def open_strategy(
    name: str, model: str | Path, devices: Sequence[str], settings: SessionSettings | None = None
) -> Strategy:
    """Return the strategy called `name`, with the arguments and errors of `Strategy`; nothing is started yet."""
    check_name(name)
    module, strategy = _REGISTRY[name]
    kind: type[Strategy] = getattr(importlib.import_module(f".{module}", __name__), strategy)
    return kind(Path(model), devices, settings or SessionSettings())
