"""The models of texts that a server has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ortmulti.pool.stats import Page
    from ortmulti.text.model import TextModel

__all__ = ["ServedTexts", "TextModels"]


class ServedTexts(NamedTuple):
    """A model of texts that answers.

    Attributes:
        name: Its name.
        model: What answers.
        width: The elements of its vectors.
        normalize: Whether vectors are brought to the length 1 where a request does not say.
    """

    name: str
    model: TextModel
    width: int
    normalize: bool = True

    @property
    def task(self) -> str:
        """What it is for."""
        return self.model.settings.task


class TextModels(dict[str, ServedTexts]):
    """All of them, by name, and what they have answered."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, str]] = Counter()
        # Of what the core has answered: texts and tokens, by model.
        self.core_counts: Callable[[], Mapping[str, tuple[int, int]]] = dict
        self._lock = threading.Lock()

    def count(self, name: str, texts: int, tokens: int) -> None:
        """Count what one has answered."""
        with self._lock:
            self._counts["texts", name] += texts
            self._counts["tokens", name] += tokens

    def add_to(self, page: Page) -> None:
        """Add the counts to a page of metrics."""
        with self._lock:
            counts = self._counts.copy()
        for name, (texts, tokens) in self.core_counts().items():
            counts["texts", name] += texts
            counts["tokens", name] += tokens
        for what, text in (("texts", "Texts that were answered."), ("tokens", "Their tokens.")):
            counted = [({"model": name}, count) for (kind, name), count in counts.items() if kind == what]
            page.add(f"{what}_total", "counter", text, counted, {})
