"""Models that ONNX Runtime optimized once: made, kept in a cache, and found again."""

from __future__ import annotations

from .build import build, entry_options, not_loadable, signature
from .cache import Cache, Draft
from .entry import Damaged, Entry
from .key import CacheKey, compute_capability, key_of
from .obtain import Wanted

__all__ = [
    "Cache",
    "CacheKey",
    "Damaged",
    "Draft",
    "Entry",
    "Wanted",
    "build",
    "compute_capability",
    "entry_options",
    "key_of",
    "not_loadable",
    "signature",
]
