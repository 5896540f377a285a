"""How a load reads weights, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

from ortmulti import checks as _checks

__all__ = ["LoadProgress", "LoaderOptions", "OnLoadProgress"]

# Of each field: the least, and the most that is no mistake.
_LIMITS = {"reader_threads": (1, 1024), "chunk_bytes": (4096, 2**30), "buffers_per_thread": (1, 64)}


@dataclass(frozen=True)
class LoaderOptions:
    """How weights are read from their files and copied to the first GPU; None: chosen for the machine.

    Each thread has its own buffers of pinned memory: in all ``reader_threads`` x ``buffers_per_thread`` x
    ``chunk_bytes`` while the weights are loaded. Pinning takes time, so more memory soon stops being faster.

    Attributes:
        reader_threads: Threads that read; default: one for each usable core, up to a few, fewer for small models.
        chunk_bytes: Bytes that a thread reads at once, 4 KiB to 1 GiB.
        buffers_per_thread: Chunks of a thread: one is read while the others are copied.

    Raises:
        InvalidArgument, InvalidType: A value is not a whole number within its limits.
    """

    reader_threads: int | None = None
    chunk_bytes: int | None = None
    buffers_per_thread: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                object.__setattr__(self, field.name, _checks.integer(field.name, value, *_LIMITS[field.name]))


@dataclass(frozen=True)
class LoadProgress:
    """Progress of `load`.

    Attributes:
        bytes_loaded: Bytes of shared weights that are on the first device or on their way to it; 0 without shared
            weights.
        bytes_total: All bytes of shared weights; 0 without shared weights, or while it is unknown.
        seconds: Seconds since the call.
        sessions_ready: Sessions that can run.
        sessions_total: All requested sessions.
        device: The device of the session that has just become ready; empty if only bytes were loaded.
    """

    bytes_loaded: int
    bytes_total: int
    seconds: float
    sessions_ready: int
    sessions_total: int
    device: str = ""

    @property
    def gb_per_second(self) -> float:
        """Gigabytes (1e9 bytes) of weights per second since the call."""
        return self.bytes_loaded / self.seconds / 1e9 if self.seconds > 0 else 0.0


OnLoadProgress: TypeAlias = Callable[[LoadProgress], object]
