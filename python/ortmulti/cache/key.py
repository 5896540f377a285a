"""The name of an entry of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortmulti import _core

FORMAT = 2
"""Of the entries. Another number gives other keys, so that entries of another format are never found."""


@dataclass(frozen=True)
class CacheKey:
    """The name of an optimized model, and the facts behind it.

    Attributes:
        digest: The name, from all facts.
        facts: All facts on which the optimized model depends, for JSON.
        sources: The model's files at the time of the key: its own, unless it is in bytes, and those with its data.
        model: The model's path or URL, for the list of the cache; empty for bytes.
    """

    digest: str
    facts: dict[str, Any]
    sources: tuple[_core.Source, ...]
    model: str

    def changed_source(self) -> str | None:
        """Return the first of the model's files that has changed; None if none has."""
        return next((source.name for source in self.sources if not source.is_current()), None)
