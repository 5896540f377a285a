"""How weights are read."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ortmulti._runtime import checks as _checks

__all__ = ["LoaderOptions"]

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
