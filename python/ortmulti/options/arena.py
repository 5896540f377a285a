"""The arenas that sessions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ortmulti import _core
from ortmulti import checks as _checks
from ortmulti.errors import InvalidArgument, InvalidType

__all__ = ["ArenaConfig"]

_STRATEGIES = ("kNextPowerOfTwo", "kSameAsRequested")
# ONNX Runtime has the first ones as 32-bit numbers.
_LARGEST = {
    "max_mem": 2**63 - 1,
    "initial_chunk_size_bytes": 2**31 - 1,
    "max_dead_bytes_per_chunk": 2**31 - 1,
    "initial_growth_chunk_size_bytes": 2**31 - 1,
    "max_power_of_two_extend_bytes": 2**63 - 1,
}
_OF_POWERS_OF_TWO = ("initial_chunk_size_bytes", "initial_growth_chunk_size_bytes", "max_power_of_two_extend_bytes")


@dataclass(frozen=True)
class ArenaConfig:
    """How an arena that sessions share grows, with ONNX Runtime's names; see `ortmulti.configure`.

    Attributes:
        max_mem: Largest size in bytes; a run or creation that needs more fails. Default 0: no limit.
        arena_extend_strategy: ``"kNextPowerOfTwo"``: each new region is twice as large as the last;
            ``"kSameAsRequested"``: as large as the request. Default None: ONNX Runtime's, the former.
        initial_chunk_size_bytes: Bytes of the first region. Default None: ONNX Runtime's, 1 MiB.
        max_dead_bytes_per_chunk: Largest unused part of a chunk in bytes; a chunk with more is split. Default None:
            ONNX Runtime's, 128 MiB.
        initial_growth_chunk_size_bytes: Bytes of the first region after a shrinkage. Default None: ONNX Runtime's,
            2 MiB.
        max_power_of_two_extend_bytes: Largest growth at once in bytes, unless a request is larger. Default None: ONNX
            Runtime's, 1 GiB.

    Raises:
        InvalidArgument, InvalidType: A value is not valid, the first region is larger than ``max_mem``, or sizes of
            regions were given with ``"kSameAsRequested"``.
    """

    max_mem: int = 0
    arena_extend_strategy: Literal["kNextPowerOfTwo", "kSameAsRequested"] | None = None
    initial_chunk_size_bytes: int | None = None
    max_dead_bytes_per_chunk: int | None = None
    initial_growth_chunk_size_bytes: int | None = None
    max_power_of_two_extend_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            if (value := getattr(self, name)) is not None:
                number = _checks.integer(name, value, 0 if name == "max_mem" else 1, largest)
                object.__setattr__(self, name, number)
        strategy = self.arena_extend_strategy
        if strategy is not None:
            _checks.choice("arena_extend_strategy", _checks.text("arena_extend_strategy", strategy), _STRATEGIES)
        given = [name for name in _OF_POWERS_OF_TWO if getattr(self, name) is not None]
        if strategy == "kSameAsRequested" and given:
            raise InvalidArgument(
                f"{', '.join(given)}: kSameAsRequested makes the arena grow by the size of each request"
            )
        if self.max_mem and (self.initial_chunk_size_bytes or 0) > self.max_mem:
            raise InvalidArgument(
                f"initial_chunk_size_bytes is {self.initial_chunk_size_bytes}, more than max_mem, {self.max_mem}"
            )

    def _to_core(self) -> dict[str, int]:
        result = {name: getattr(self, name) for name in _LARGEST}
        if self.arena_extend_strategy is not None:
            result["arena_extend_strategy"] = _STRATEGIES.index(self.arena_extend_strategy)
        return {name: value for name, value in result.items() if value is not None}


def to_core(arena: object) -> dict[str, dict[str, int]]:
    """Return the argument ``arena`` of `ortmulti.configure` as the core takes it, by device; ``""``: every device.

    Raises:
        InvalidArgument, InvalidType: No configuration, or a device that is none.
    """
    if isinstance(arena, ArenaConfig):
        return {"": arena._to_core()}
    if not isinstance(arena, Mapping) or not all(isinstance(each, ArenaConfig) for each in arena.values()):
        raise InvalidType(f"arena is an ortmulti.ArenaConfig, or a dict of them by device, not {arena!r}")
    if not arena:
        raise InvalidArgument("arena names no device")
    found = {}
    for device, config in arena.items():
        kind, index = _core.parse_device(_checks.text("a device", device))
        found["cpu" if kind == "cpu" else f"cuda:{index}"] = config._to_core()
    return found
