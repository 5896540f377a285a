"""A model of texts: texts in; vectors, scores or classes out."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ortmulti import checks
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.text import vectors
from ortmulti.text.tokens import Text, Tokenizer, Tokens, Truncate, blocks

if TYPE_CHECKING:
    from types import TracebackType

    from ortmulti.pool.pool import Requests
    from ortmulti.text.settings import Settings, Task

__all__ = ["Label", "TextModel"]

_Vectors = NDArray[np.float32]
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

    Attributes:
        pool: The sessions.
        settings: What the model's files say.
    """

    def __init__(self, requests: Requests, settings: Settings, *, closes: bool = True) -> None:
        self.pool = requests
        self.settings = settings
        self._tokenizer = Tokenizer(settings)
        self._closes = closes
        self._width = 0  # of an output's row, once it is known
        self._inputs: _Inputs | None = None

    @property
    def dimensions(self) -> int:
        """The elements of a vector; of a model that ranks or classifies the number of its labels."""
        return self._declared() or len(self._table(["a"], True, None)[0])

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
                ``settings.default_prompt``; ``""``: nothing.
            dimensions: So many first elements of each vector alone, for models that were trained so (Matryoshka).
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
        table = self._table(items, truncate, counts, skip)
        return vectors.shortened(table, dimensions, self._normalizes(normalize))

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
        table = await self._table_async(items, truncate, counts, timeout, when_full, skip)
        return vectors.shortened(table, dimensions, self._normalizes(normalize))

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
        for row in self._rows(items, truncate, None, skip):
            yield vectors.shortened(row, dimensions, normal)

    def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        raw_scores: bool = False,
        truncate: Truncate = True,
        counts: list[int] | None = None,
    ) -> _Vectors:
        """Return how well each text answers a query.

        Args:
            query: The query.
            texts: The texts.
            raw_scores: Return what the model does; default: by the activation of the settings, mostly from 0 to 1.
            truncate, counts: See `TextModel`; of the query and a text together.

        Returns:
            An array ``[n]``, in the texts' order.

        Raises:
            InvalidArgument, InvalidType: A text cannot be taken, or the model is no cross-encoder.
            Error: As `Pool.run`.
        """
        return self._scores(self._table(self._pairs(query, texts), truncate, counts), raw_scores)

    async def rank_async(
        self,
        query: str,
        texts: Sequence[str],
        *,
        raw_scores: bool = False,
        truncate: Truncate = True,
        counts: list[int] | None = None,
        timeout: float | None = None,
        when_full: Literal["block", "reject"] = "block",
    ) -> _Vectors:
        """Do the same without blocking the event loop. After an error, what is left of the texts is cancelled."""
        pairs = self._pairs(query, texts)
        return self._scores(await self._table_async(pairs, truncate, counts, timeout, when_full), raw_scores)

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
        return self._classes(self._table(_listed(texts), truncate, counts), raw_scores)

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
        table = await self._table_async(_listed(texts), truncate, counts, timeout, when_full)
        return self._classes(table, raw_scores)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, uncut, with the special ones."""
        return self._tokenizer.count(_listed(texts))

    async def tokenize_async(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[Any]:
        """Return the ``tokenizers.Encoding`` of each text, uncut."""
        return await self._tokenizer.encodings_async(_listed(texts), special_tokens)

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
                f"the model {self.settings.name!r} is for {self.settings.task}: call {_CALLS[self.settings.task]}(), or "
                f"load it with task={task!r}"
            )

    def _check_dimensions(self, dimensions: int | None) -> None:
        if dimensions is not None:
            checks.integer("dimensions", dimensions, 1, self._declared() or None)

    def _declared(self) -> int:
        """Return the elements of a row; 0 where neither the model nor a run has said it."""
        if not self._width:
            shapes = [one.shape for one in self.pool.get_outputs() if one.name == self.settings.output]
            size = shapes[0][-1] if shapes and shapes[0] else None
            self._width = size if isinstance(size, int) else 0
        return self._width

    def _normalizes(self, normalize: bool | None) -> bool:
        checks.boolean_or_none("normalize", normalize)
        return self.settings.normalize if normalize is None else normalize

    def _prompt(self, prompt: str | None) -> str:
        prompts = self.settings.prompts
        if prompt is None:
            return "" if self.settings.default_prompt is None else prompts[self.settings.default_prompt]
        checks.instance("prompt", prompt, str)
        return prompts.get(prompt, prompt)

    def _skipped(self, prompt: str) -> int:
        return 0 if self.settings.include_prompt else self._tokenizer.length_of_prompt(prompt)

    def _prompted(self, texts: Sequence[Text], prompt: str | None) -> tuple[Sequence[Text], int]:
        self._check_task("embedding")
        items, before = _listed(texts), self._prompt(prompt)
        if before:
            items = [before + text if isinstance(text, str) else text for text in items]
        return items, self._skipped(before)

    def _pairs(self, query: str, texts: Sequence[str]) -> list[Text]:
        self._check_task("ranking")
        checks.instance("query", query, str)
        return [(query, text) for text in _listed(texts)]

    # --- Results ---------------------------------------------------------------------------------------------------

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

    # --- Runs ------------------------------------------------------------------------------------------------------

    def _feed(self, tokens: Tokens) -> dict[str, NDArray[Any]]:
        if self._inputs is None:
            self._inputs = _Inputs(self.pool, self.settings)
        return self._inputs.feed(tokens)

    def _row(self, outputs: list[NDArray[Any]], skip: int) -> _Vectors:
        row = vectors.pooled(outputs[0], self.settings.pooling, skip)
        self._width = self._width or len(row)
        return row

    def _rows(
        self, texts: Iterable[Text], truncate: Truncate, counts: list[int] | None, skip: int
    ) -> Iterator[_Vectors]:
        def feeds() -> Iterator[dict[str, NDArray[Any]]]:
            number = 0
            for block in blocks(texts):
                found = self._tokenizer.encode(block, number, truncate)
                number += len(block)
                if counts is not None:
                    counts.extend(len(tokens.ids) for tokens in found)
                yield from map(self._feed, found)

        checks.choice("truncate", truncate, (True, False, "right", "left"))
        for outputs in self.pool.map([self.settings.output], feeds()):
            yield self._row(outputs, skip)

    def _table(self, texts: Sequence[Text], truncate: Truncate, counts: list[int] | None, skip: int = 0) -> _Vectors:
        if len(texts) == 1:  # in this thread
            [tokens] = self._tokenizer.encode(texts, 0, truncate)
            if counts is not None:
                counts.append(len(tokens.ids))
            return self._row(self.pool.run([self.settings.output], self._feed(tokens)), skip)[None]
        table = _Table(len(texts), self._declared())
        for i, row in enumerate(self._rows(texts, truncate, counts, skip)):
            table.set(i, row)
        return table.rows()

    async def _table_async(
        self,
        texts: Sequence[Text],
        truncate: Truncate,
        counts: list[int] | None,
        timeout: float | None,
        when_full: Literal["block", "reject"],
        skip: int = 0,
    ) -> _Vectors:
        """Each text is a request of the pool's. So many are pending as keep it busy, so that those of other callers
        come in between.
        """
        checks.choice("truncate", truncate, (True, False, "right", "left"))
        end = None if timeout is None else time.monotonic() + checks.number("timeout", timeout)
        table, most, first = _Table(len(texts), self._declared()), self.pool.at_once, 0
        pending: deque[tuple[int, asyncio.Task[list[NDArray[Any]]]]] = deque()

        async def answer() -> None:
            place, task = pending[0]
            table.set(place, self._row(await task, skip))
            pending.popleft()

        try:
            for block in blocks(texts):
                found = await self._tokenizer.encode_async(block, first, truncate)
                if counts is not None:
                    counts.extend(len(tokens.ids) for tokens in found)
                for i in sorted(range(len(found)), key=lambda i: len(found[i].ids), reverse=True):
                    while len(pending) >= most:
                        await answer()
                    left = None if end is None else max(0.0, end - time.monotonic())
                    run = self.pool.run_async(
                        [self.settings.output], self._feed(found[i]), timeout=left, when_full=when_full
                    )
                    pending.append((first + i, asyncio.ensure_future(run)))
                first += len(found)
            while pending:
                await answer()
        finally:
            for _, task in pending:
                task.cancel()
            await asyncio.gather(*(task for _, task in pending), return_exceptions=True)
        return table.rows()


class _Inputs:
    """Makes the inputs of a text: of its own length. Those that only depend on it are views of one array."""

    def __init__(self, pool: Requests, settings: Settings) -> None:
        shape = 1, settings.max_length
        made = {
            "attention_mask": np.ones(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
            "position_ids": np.arange(settings.max_length, dtype=np.int64)[None],
        }
        types = {one.name: one.dtype for one in pool.get_inputs()}
        self._ids = types["input_ids"]
        self._made = {name: made[name].astype(type_) for name, type_ in types.items() if name in made}

    def feed(self, tokens: Tokens) -> dict[str, NDArray[Any]]:
        ids = np.array([tokens.ids], self._ids)
        length = ids.shape[1]
        feed = {name: array[:, :length] for name, array in self._made.items()}
        feed["input_ids"] = ids
        if tokens.types is not None:
            feed["token_type_ids"] = np.array([tokens.types], self._made["token_type_ids"].dtype)
        return feed


class _Table:
    """Rows of one width: that of the first one."""

    def __init__(self, count: int, width: int) -> None:
        self._count, self._width = count, width
        self._rows: _Vectors | None = None

    def set(self, place: int, row: _Vectors) -> None:
        if self._rows is None:
            self._rows = np.empty((self._count, len(row)), np.float32)
        self._rows[place] = row

    def rows(self) -> _Vectors:
        return np.empty((0, self._width), np.float32) if self._rows is None else self._rows


def _listed(texts: Any) -> Sequence[Any]:
    if isinstance(texts, str):
        raise InvalidType("texts is a list of texts, not one: give [text]")
    if not isinstance(texts, Sequence | np.ndarray) or isinstance(texts, bytes | bytearray):
        raise InvalidType(f"texts is a list of texts, not {type(texts).__name__}")
    return texts
