"""How a load reads weights, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

from ortmulti._runtime import checks as _checks

__all__ = ["LoadProgress", "LoaderOptions", "OnLoadProgress"]

# Of each field: the least, and the most that is no mistake.
_LIMITS = {"reader_threads": (1, 1024), "chunk_bytes": (4096, 2**30), "buffers_per_thread": (1, 64)}


@dataclass(frozen=True)
class LoaderOptions:
    """How weights get from their files to the first GPU; None: as suits the machine.

    Each thread has buffers of pinned memory of its own: together ``reader_threads`` x ``buffers_per_thread`` x
    ``chunk_bytes`` while the weights are loaded. Pinning takes time, so that more is not faster for long.

    Attributes:
        reader_threads: Threads that read; default: one a usable core, up to a few, fewer for small models.
        chunk_bytes: Bytes that a thread reads at once, 4 KiB to 1 GiB.
        buffers_per_thread: Chunks that a thread has under way, one being read and the others being copied.

    Raises:
        InvalidArgument, InvalidType: Not a whole number within the limits.
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
