"""Which objects are still alive."""

from __future__ import annotations

import gc
import weakref


def alive(*references: weakref.ref[object]) -> list[bool]:
    """Whether something still holds each of these, when all that nothing holds is freed."""
    gc.collect()
    return [reference() is not None for reference in references]
