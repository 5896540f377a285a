"""A model of texts: texts in; vectors, scores or classes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ortmulti.pool.pool import Requests
from ortmulti.text.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Label", "Text", "TextModel"]

Text: TypeAlias = str | Sequence[int]
"""A text, or its tokens with the special ones; these are neither cut nor given a prompt."""


class Label(NamedTuple):
    """A class and its score."""

    name: str
    score: float


class TextModel:
    """Texts in; vectors, scores or classes out.

    Args:
        requests: The sessions of the model: a `Pool`, or a repository's model.
        settings: As `read_settings` returns them.
        closes: Whether `close` closes ``requests``.

    All methods may be called from any thread. ``counts``, a list, receives the number of tokens of each text, in the
    texts' order. ``truncate``: ``True`` or ``"right"`` cuts longer texts at their end, ``"left"`` at their beginning,
    False refuses them (`InvalidArgument` with the length).
    """

    def __init__(self, requests: Requests, settings: Settings, *, closes: bool = True) -> None:
        raise NotImplementedError

    settings: Settings
    pool: Requests
    dimensions: int
    """Of a vector; of a model that ranks or classifies the number of its labels."""

    def embed(
        self,
        texts: Sequence[Text],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: bool | Literal["right", "left"] = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
    ) -> NDArray[np.float32]:
        """Return a vector for each text: ``[n, dimensions]``."""
        raise NotImplementedError

    async def embed_async(
        self,
        texts: Sequence[Text],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: bool | Literal["right", "left"] = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
        when_full: Literal["block", "reject"] = "block",
    ) -> NDArray[np.float32]:
        """As `embed`, without blocking the event loop."""
        raise NotImplementedError

    def embed_stream(
        self,
        texts: Iterable[Text],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: bool | Literal["right", "left"] = True,
    ) -> Iterator[NDArray[np.float32]]:
        """Yield a vector for each text, in order, while the next ones run."""
        raise NotImplementedError

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        raw_scores: bool = False,
        truncate: bool | Literal["right", "left"] = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
    ) -> NDArray[np.float32]:
        """Return how well each text answers the query: ``[n]``, in the texts' order."""
        raise NotImplementedError

    async def rank_async(
        self,
        query: str,
        texts: Sequence[str],
        *,
        raw_scores: bool = False,
        truncate: bool | Literal["right", "left"] = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
        when_full: Literal["block", "reject"] = "block",
    ) -> NDArray[np.float32]:
        """As `rank`, without blocking the event loop."""
        raise NotImplementedError

    def classify(
        self,
        texts: Sequence[Text | tuple[str, str]],
        *,
        raw_scores: bool = False,
        truncate: bool | Literal["right", "left"] = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
    ) -> list[list[Label]]:
        """Return the classes of each text or pair of texts, those with the highest scores first."""
        raise NotImplementedError

    async def classify_async(
        self,
        texts: Sequence[Text | tuple[str, str]],
        *,
        raw_scores: bool = False,
        truncate: bool | Literal["right", "left"] = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
        when_full: Literal["block", "reject"] = "block",
    ) -> list[list[Label]]:
        """As `classify`, without blocking the event loop."""
        raise NotImplementedError

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, uncut, with the special ones."""
        raise NotImplementedError

    async def tokenize_async(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[Any]:
        """Return the ``tokenizers.Encoding`` of each text, uncut."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the pool, unless it is somebody else's, and the threads that tokenize."""
        raise NotImplementedError
