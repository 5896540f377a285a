"""How far a load has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["LoadProgress", "OnLoadProgress"]


@dataclass(frozen=True)
class LoadProgress:
    """How far `load` has come.

    Attributes:
        bytes_loaded: Bytes of shared weights that are on the first device or on their way to it; 0 where none are
            shared.
        bytes_total: All bytes of shared weights; 0 where none are, or while it is not known.
        seconds: Since the call.
        sessions_ready: Sessions that can run.
        sessions_total: All that were asked for.
        device: The device of the session that has just become ready; empty where the news is of bytes.
    """

    bytes_loaded: int
    bytes_total: int
    seconds: float
    sessions_ready: int
    sessions_total: int
    device: str = ""

    @property
    def gb_per_second(self) -> float:
        """Gigabytes (1e9 bytes) of weights a second, from the call on."""
        return self.bytes_loaded / self.seconds / 1e9 if self.seconds > 0 else 0.0


OnLoadProgress: TypeAlias = Callable[[LoadProgress], object]
