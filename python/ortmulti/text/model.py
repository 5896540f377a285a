"""A model of texts: texts in; vectors, scores or classes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ortmulti import checks
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.text import vectors
from ortmulti.text.layers import Layers
from ortmulti.text.runs import Runs
from ortmulti.text.tokens import Text, Tokenizer, Truncate

if TYPE_CHECKING:
    from types import TracebackType

    from ortmulti import _core
    from ortmulti.pool.pool import Requests
    from ortmulti.text.settings import Settings, Task

__all__ = ["Label", "TextModel"]

_Vectors = NDArray[np.float32]
# Every model of sentence-transformers has these, whatever its files say.
_PROMPTS = {"query": "", "document": ""}
_CALLS = {"embedding": "embed", "ranking": "rank", "classification": "classify"}


class Label(NamedTuple):
    """A class and its score."""

    name: str
    score: float


class TextModel:
    """Texts in; vectors, scores or classes out. `ortmulti.text.load` makes one.

    All methods may be called from any thread. They take some arguments in common:

    - ``truncate``: True cuts longer texts where the tokenizer's files say, which mostly is their end; ``"right"`` at
      their end, ``"left"`` at their beginning. False refuses them: `InvalidArgument` with the length.
    - ``counts``: a list, to which the number of tokens of each text is added, in the texts' order.
    - ``timeout`` and ``when_full``: of the whole call, otherwise as `Pool.run_async` has them.

    A text may also be a list of tokens, with the special ones. Such get no prompt.

    Args:
        requests: The sessions of the model: a `Pool`, or a repository's model.
        settings: As `read_settings` returns them.
        closes: Whether `close` closes ``requests``, too.
        tokenizer, layers: Those of the settings, where they are loaded already.

    Attributes:
        pool: The sessions.
        settings: What the model's files say.
    """

    def __init__(
        self,
        requests: Requests,
        settings: Settings,
        *,
        closes: bool = True,
        tokenizer: Tokenizer | None = None,
        layers: Layers | None = None,
    ) -> None:
        self.pool = requests
        self.settings = settings
        self._tokenizer = tokenizer or Tokenizer(settings)
        self._layers = layers or Layers(settings.layers)
        self._runs = Runs(requests, settings, self._tokenizer)
        self._closes = closes

    @property
    def dimensions(self) -> int:
        """The elements of a vector; of a model that ranks or classifies the number of its labels."""
        return self.settings.dimensions or self._width() or self._runs.table(["a"]).shape[1]

    def embed(
        self,
        texts: Sequence[Text],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = True,
        counts: list[int] | None = None,
    ) -> _Vectors:
        """Return a vector for each text.

        Args:
            texts: The texts.
            prompt: What is put before each text: one of ``settings.prompts`` by its name, or a text. Default:
                ``settings.default_prompt``; ``""``: nothing. ``"query"`` and ``"document"`` are nothing where the
                model has no such prompts.
            dimensions: So many first elements of each vector alone, for models that were trained so (Matryoshka).
                Default: as the settings say.
            normalize: Whether vectors are brought to the length 1. Default: as the settings say.
            truncate, counts: See `TextModel`.

        Returns:
            An array ``[n, dimensions]``.

        Raises:
            InvalidArgument, InvalidType: A text cannot be taken, or the model is none of embeddings.
            Error: As `Pool.run`.
        """
        items, skip = self._prompted(texts, prompt)
        self._check_dimensions(dimensions)
        table = self._runs.table(items, truncate, counts, skip)
        return self._finished(table, dimensions, self._normalizes(normalize))

    async def embed_async(
        self,
        texts: Sequence[Text],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
        when_full: Literal["block", "reject"] = "block",
    ) -> _Vectors:
        """Do the same without blocking the event loop. After an error, what is left of the texts is cancelled."""
        items, skip = self._prompted(texts, prompt)
        self._check_dimensions(dimensions)
        table = await self._runs.table_async(items, truncate, counts, timeout, when_full, skip)
        return self._finished(table, dimensions, self._normalizes(normalize))

    def embed_stream(
        self,
        texts: Iterable[Text],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: Truncate = True,
    ) -> Iterator[_Vectors]:
        """Yield a vector for each text, in order, while the next ones run: neither texts nor vectors need fit into
        memory. The first error is raised in its text's place.

        Args:
            texts: Any iterable, such as the lines of a file; read ahead as by `Pool.map`.
            prompt, dimensions, normalize, truncate: As for `embed`.
        """
        self._check_task("embedding")
        self._check_dimensions(dimensions)
        before = self._prompt(prompt)
        skip = self._skipped(before)
        items = (before + text if isinstance(text, str) else text for text in texts) if before else texts
        normal = self._normalizes(normalize)
        for row in self._runs.rows(items, truncate, None, skip):
            yield self._finished(row, dimensions, normal)

    def rank(
        self,
        query: str | Sequence[str],
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        raw_scores: bool = False,
        truncate: Truncate = True,
        counts: list[int] | None = None,
    ) -> _Vectors:
        """Return how well each text answers a query, or its own.

        Args:
            query: The query, or one for each text.
            texts: The texts.
            prompt: What is put before the query, as for `embed`.
            raw_scores: Return what the model does; default: by the activation of the settings, mostly from 0 to 1.
            truncate, counts: See `TextModel`; of the query and a text together.

        Returns:
            An array ``[n]``, in the texts' order.

        Raises:
            InvalidArgument, InvalidType: A text cannot be taken, or the model is no cross-encoder.
            Error: As `Pool.run`.
        """
        return self._scores(self._runs.table(self._pairs(query, texts, prompt), truncate, counts), raw_scores)

    async def rank_async(
        self,
        query: str | Sequence[str],
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        raw_scores: bool = False,
        truncate: Truncate = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
        when_full: Literal["block", "reject"] = "block",
    ) -> _Vectors:
        """Do the same without blocking the event loop. After an error, what is left of the texts is cancelled."""
        pairs = self._pairs(query, texts, prompt)
        return self._scores(await self._runs.table_async(pairs, truncate, counts, timeout, when_full), raw_scores)

    def classify(
        self,
        texts: Sequence[Text],
        *,
        raw_scores: bool = False,
        truncate: Truncate = True,
        counts: list[int] | None = None,
    ) -> list[list[Label]]:
        """Return the classes of each text, or of each pair of texts, those with the highest scores first.

        Args:
            texts: The texts, or tuples of two.
            raw_scores: Return what the model does; default: probabilities.
            truncate, counts: See `TextModel`.

        Raises:
            InvalidArgument, InvalidType: A text cannot be taken, or the model does not classify.
            Error: As `Pool.run`.
        """
        self._check_task("classification")
        return self._classes(self._runs.table(_listed(texts), truncate, counts), raw_scores)

    async def classify_async(
        self,
        texts: Sequence[Text],
        *,
        raw_scores: bool = False,
        truncate: Truncate = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
        when_full: Literal["block", "reject"] = "block",
    ) -> list[list[Label]]:
        """Do the same without blocking the event loop. After an error, what is left of the texts is cancelled."""
        self._check_task("classification")
        table = await self._runs.table_async(_listed(texts), truncate, counts, timeout, when_full)
        return self._classes(table, raw_scores)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, uncut, with the special ones."""
        return self._tokenizer.count(_listed(texts))

    async def tokenize_async(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[Any]:
        """Return the ``tokenizers.Encoding`` of each text, uncut."""
        return await self._tokenizer.encodings_async(_listed(texts), special_tokens)

    def run_as(
        self,
        make: Callable[[_core.TokenModel, int], _core.TokenBlock],
        texts: Sequence[Text],
        prompt: str | None,
        truncate: Truncate,
        timeout: float | None,
        begin: float,
    ) -> None:
        """Have texts embedded as a block that the caller makes, of the model and of how many tokens are not pooled.
        Without room in the queue the last ones are refused. For servers.
        """
        items, skip = self._prompted(texts, prompt)
        tokens = self._tokenizer.encode(items, 0, truncate)
        runs = self._runs.of_tokens()
        block = make(runs.model, skip)
        block.fill(tokens, None, timeout, begin)
        runs.submit(block, waits=False, limited=True, whole=False)

    @property
    def rows_are_vectors(self) -> bool:
        """Whether the vectors are the model's rows, but for their length and their first elements."""
        return not self.settings.layers

    def check(self) -> None:
        """Refuse a model that takes no texts, if it is loaded by now; each call does, too.

        Raises:
            InvalidArgument: Its inputs have a fixed length.
        """
        if self.pool.ready:
            self._runs.check()

    def close(self) -> None:
        """Close the sessions, unless they are somebody else's, and end the threads that tokenize."""
        if self._closes:
            self.pool.close()
        self._tokenizer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)  # the event loop may have requests answered meanwhile

    def __repr__(self) -> str:
        return f"<TextModel {self.settings.name!r} for {self.settings.task}: {self.pool!r}>"

    # --- Arguments -------------------------------------------------------------------------------------------------

    def _check_task(self, task: Task) -> None:
        if self.settings.task != task:
            raise InvalidArgument(
                f"the model {self.settings.name!r} is for {self.settings.task}: call {_CALLS[self.settings.task]}(), "
                f"or load it with task={task!r}"
            )

    def _check_dimensions(self, dimensions: int | None) -> None:
        if dimensions is not None:
            checks.integer("dimensions", dimensions, 1, self._width() or None)

    def _normalizes(self, normalize: bool | None) -> bool:
        checks.boolean_or_none("normalize", normalize)
        return self.settings.normalize if normalize is None else normalize

    def _prompt(self, prompt: str | None) -> str:
        prompts = _PROMPTS | {**self.settings.prompts}
        if prompt is None:
            return "" if self.settings.default_prompt is None else prompts[self.settings.default_prompt]
        checks.instance("prompt", prompt, str)
        if prompt not in prompts and prompt.isidentifier():  # a name rather than a text
            raise InvalidArgument(
                f"prompt is one of {', '.join(map(repr, prompts))}, or a text that ends with a blank, not {prompt!r}"
            )
        return prompts.get(prompt, prompt)

    def _skipped(self, prompt: str) -> int:
        return 0 if self.settings.include_prompt else self._tokenizer.length_of_prompt(prompt)

    def _prompted(self, texts: Sequence[Text], prompt: str | None) -> tuple[Sequence[Text], int]:
        self._check_task("embedding")
        items, before = _listed(texts), self._prompt(prompt)
        if before:
            items = [before + text if isinstance(text, str) else text for text in items]
        return items, self._skipped(before)

    def _pairs(self, query: str | Sequence[str], texts: Sequence[str], prompt: str | None) -> list[Text]:
        self._check_task("ranking")
        items = _listed(texts)
        queries: Any = query if (several := isinstance(query, list | tuple)) else [query]
        for each in queries:
            checks.instance("query", each, str)
        queries = queries if several else queries * len(items)
        if len(queries) != len(items):
            raise InvalidArgument(f"there are {len(queries)} queries for {len(items)} texts: give one, or one for each")
        before = self._prompt(prompt)
        return [(before + one, text) for one, text in zip(queries, items, strict=True)]

    def _width(self) -> int:
        return self._layers.width or self._runs.width()

    # --- Results ---------------------------------------------------------------------------------------------------

    def _finished(self, table: _Vectors, dimensions: int | None, normalize: bool) -> _Vectors:
        return vectors.shortened(self._layers(table), dimensions or self.settings.dimensions, normalize)

    def _scores(self, table: _Vectors, raw_scores: bool) -> _Vectors:
        if len(table) and table.shape[1] != 1:
            raise InvalidArgument(
                f"the model has {table.shape[1]} labels, and a ranking needs one score: load it with "
                "task='classification'"
            )
        scores = table if raw_scores else vectors.activated(table, self.settings.activation)
        return scores.reshape(-1)

    def _classes(self, table: _Vectors, raw_scores: bool) -> list[list[Label]]:
        scores = table if raw_scores else vectors.activated(table, self.settings.activation)
        names: Sequence[str] = self.settings.labels or [f"LABEL_{i}" for i in range(table.shape[1])]
        if len(table) and len(names) != table.shape[1]:
            raise InvalidArgument(f"config.json names {len(names)} labels, and the model has {table.shape[1]}: mend it")
        return [
            [Label(names[i], score) for i, score in sorted(enumerate(row), key=lambda one: -one[1])]
            for row in scores.tolist()
        ]


def _listed(texts: Any) -> Any:
    if isinstance(texts, str):
        raise InvalidType("texts is a list of texts, not one: give [text]")
    if not isinstance(texts, Sequence | np.ndarray) or isinstance(texts, bytes | bytearray):
        raise InvalidType(f"texts is a list of texts, not {type(texts).__name__}: embed_stream takes any iterable")
    return texts
