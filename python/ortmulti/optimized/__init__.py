"""Models that ONNX Runtime optimized once: made, kept in a cache, and found again."""

from __future__ import annotations

from ortmulti.cache.entries import Cache, StagedEntry
from ortmulti.cache.entry import Damaged, Entry
from ortmulti.cache.key import CacheKey
from ortmulti.optimized.build import CacheRequest, build, entry_options, not_loadable, signature
from ortmulti.optimized.contexts import compiling, context_key, finish
from ortmulti.optimized.deferred_entries import keep, wait_for_entries
from ortmulti.optimized.key import compute_capability, key_of

__all__ = [
    "Cache",
    "CacheKey",
    "CacheRequest",
    "Damaged",
    "Entry",
    "StagedEntry",
    "build",
    "compiling",
    "compute_capability",
    "context_key",
    "entry_options",
    "finish",
    "keep",
    "key_of",
    "not_loadable",
    "signature",
    "wait_for_entries",
]
