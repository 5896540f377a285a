"""Runs of texts: each is a request of the pool's, and its answer a row of a table."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortmulti import checks
from ortmulti.errors import InvalidArgument
from ortmulti.text.tokens import Text, Tokenizer, Tokens, Truncate, blocks
from ortmulti.text.vectors import pooled

if TYPE_CHECKING:
    from ortmulti.pool.pool import Requests
    from ortmulti.text.settings import Settings

__all__ = ["Runs"]

_Feed = dict[str, NDArray[Any]]
_Rows = NDArray[np.float32]


class Runs:
    """Has texts tokenized and run.

    Args:
        requests: The sessions of the model.
        settings: What its files say.
        tokenizer: Its tokenizer.
    """

    def __init__(self, requests: Requests, settings: Settings, tokenizer: Tokenizer) -> None:
        self._requests = requests
        self._settings = settings
        self._tokenizer = tokenizer
        self._names = [settings.output]
        self._inputs: _Inputs | None = None
        self._width = 0

    def width(self) -> int:
        """Return the elements of a row; 0 where neither the model nor a run has said it."""
        if not self._width:
            shapes = [one.shape for one in self._requests.get_outputs() if one.name == self._settings.output]
            size = shapes[0][-1] if shapes and shapes[0] else None
            joined = len(self._settings.pooling) if isinstance(self._settings.pooling, tuple) else 1
            self._width = size * joined if isinstance(size, int) else 0
        return self._width

    def check(self) -> None:
        """Refuse a model whose inputs no text gives.

        Raises:
            InvalidArgument: Its inputs have a fixed length.
        """
        self._inputs = self._inputs or _Inputs(self._requests)

    def rows(
        self, texts: Iterable[Text], truncate: Truncate = True, counts: list[int] | None = None, skip: int = 0
    ) -> Iterator[_Rows]:
        """Yield the row of each text, in order.

        Args:
            texts: The texts, or pairs of them; read as needed.
            truncate: Where they are cut, or whether.
            counts: Receives the number of tokens of each.
            skip: Tokens of a prompt, which are not pooled.
        """

        def feeds() -> Iterator[_Feed]:
            number = 0
            found: Iterable[list[Tokens]]
            for block in blocks(texts):
                try:
                    found = [self._tokenizer.encode(block, number, truncate)]
                except InvalidArgument:  # behind the texts before it
                    found = (self._tokenizer.encode([text], number + i, truncate) for i, text in enumerate(block))
                for some in found:
                    yield from map(self._feed, self._counted(some, counts))
                number += len(block)

        _check(truncate)
        for outputs in self._requests.map(self._names, feeds()):
            yield self._row(outputs, skip)

    def table(
        self, texts: Sequence[Text], truncate: Truncate = True, counts: list[int] | None = None, skip: int = 0
    ) -> _Rows:
        """Return the rows of all texts."""
        if len(texts) == 1:  # in this thread
            _check(truncate)
            [tokens] = self._counted(self._tokenizer.encode(texts, 0, truncate), counts)
            return self._row(self._requests.run(self._names, self._feed(tokens)), skip)[None]
        table = _Table(len(texts))
        for i, row in enumerate(self.rows(texts, truncate, counts, skip)):
            table.set(i, row)
        return table.rows(self)

    async def table_async(
        self,
        texts: Sequence[Text],
        truncate: Truncate,
        counts: list[int] | None,
        timeout: float | None,
        when_full: Literal["block", "reject"],
        skip: int = 0,
    ) -> _Rows:
        """Do the same without blocking the event loop. No more texts are pending than keep the pool busy, so that those
        of other callers come in between.
        """
        _check(truncate)
        end = None if timeout is None else time.monotonic() + checks.number("timeout", timeout)
        table, most, first = _Table(len(texts)), self._requests.at_once, 0
        pending: deque[tuple[int, asyncio.Task[list[NDArray[Any]]]]] = deque()

        async def answer() -> None:
            place, task = pending[0]
            table.set(place, self._row(await task, skip))
            pending.popleft()

        try:
            for block in blocks(texts):
                found = self._counted(await self._tokenizer.encode_async(block, first, truncate), counts)
                for i in sorted(range(len(found)), key=lambda i: len(found[i].ids), reverse=True):
                    while len(pending) >= most:
                        await answer()
                    left = None if end is None else max(0.0, end - time.monotonic())
                    run = self._requests.run_async(self._names, self._feed(found[i]), timeout=left, when_full=when_full)
                    pending.append((first + i, asyncio.ensure_future(run)))
                first += len(found)
            while pending:
                await answer()
        finally:
            for _, task in pending:
                task.cancel()
            await asyncio.gather(*(task for _, task in pending), return_exceptions=True)
        return table.rows(self)

    def _counted(self, found: list[Tokens], counts: list[int] | None) -> list[Tokens]:
        if counts is not None:
            counts.extend(len(tokens.ids) for tokens in found)
        return found

    def _feed(self, tokens: Tokens) -> _Feed:
        if self._inputs is None:
            self._inputs = _Inputs(self._requests)
        return self._inputs.feed(tokens)

    def _row(self, outputs: list[NDArray[Any]], skip: int) -> _Rows:
        row = pooled(outputs[0], self._settings.pooling, skip)
        self._width = len(row)
        return row


class _Inputs:
    """Makes the inputs of a text, of its own length. Those that depend on the length alone are views of one array."""

    _AT_FIRST = 512  # tokens; the longest that a file allows may be any number

    def __init__(self, requests: Requests) -> None:
        inputs = requests.get_inputs()
        if fixed := [one for one in inputs if one.shape and isinstance(one.shape[-1], int)]:
            raise InvalidArgument(
                f"the model's input '{fixed[0].name}' has the fixed length {fixed[0].shape[-1]}, and texts have any: "
                "export it with an open length"
            )
        types = {one.name: one.dtype for one in inputs}
        self._ids = types.pop("input_ids")
        self._types = types
        self._made = self._make(self._AT_FIRST)

    def _make(self, length: int) -> tuple[int, _Feed]:
        made: dict[str, Callable[..., NDArray[Any]]] = {
            "attention_mask": np.ones,
            "token_type_ids": np.zeros,
            "position_ids": _counted,
        }
        return length, {name: made[name]((1, length), type_) for name, type_ in self._types.items()}

    def feed(self, tokens: Tokens) -> _Feed:
        ids = np.array([tokens.ids], self._ids)
        length, (room, made) = ids.shape[1], self._made
        if length > room:
            _, made = self._made = self._make(2 * length)
        feed = {name: array[:, :length] for name, array in made.items()}
        feed["input_ids"] = ids
        if tokens.types is not None:
            feed["token_type_ids"] = np.array([tokens.types], self._types["token_type_ids"])
        return feed


def _counted(shape: tuple[int, int], type_: Any) -> NDArray[Any]:
    return np.arange(shape[1], dtype=type_)[None]


class _Table:
    """Rows of one width: that of the first one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: _Rows | None = None

    def set(self, place: int, row: _Rows) -> None:
        if self._rows is None:
            self._rows = np.empty((self._count, len(row)), np.float32)
        self._rows[place] = row

    def rows(self, runs: Runs) -> _Rows:
        return np.empty((0, runs.width()), np.float32) if self._rows is None else self._rows


def _check(truncate: object) -> None:
    checks.choice("truncate", truncate, (True, False, "right", "left"))
