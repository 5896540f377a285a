"""Models that ONNX Runtime optimized once: made, kept in a cache, and found again."""

from __future__ import annotations

from .build import build, entry_options, signature
from .cache import Cache, Draft, new_draft
from .entry import Damaged, Entry
from .key import CacheKey, key_of

__all__ = [
    "Cache",
    "CacheKey",
    "Damaged",
    "Draft",
    "Entry",
    "build",
    "entry_options",
    "key_of",
    "new_draft",
    "signature",
]
