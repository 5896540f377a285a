"""Models that ONNX Runtime optimized once: made, kept in a cache, and found again."""

from __future__ import annotations

from ortmulti.cache.entries import Cache, Draft
from ortmulti.cache.find_or_build import Wanted

from .build import build, entry_options, not_loadable, signature
from .entry import Damaged, Entry
from .key import CacheKey, compute_capability, key_of

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
