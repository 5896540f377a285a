"""Runs of texts: each is a request of the pool's, and its answer a row of a table."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from ortmulti import _core, checks
from ortmulti.errors import InvalidArgument
from ortmulti.pool.tokens import Rows, TokenRuns, Tokens
from ortmulti.text.tokenizing import BLOCK
from ortmulti.text.tokens import Text, Tokenizer, Truncate, blocks

if TYPE_CHECKING:
    from ortmulti.pool.pool import Requests
    from ortmulti.text.settings import Settings

__all__ = ["Runs"]

_TIMES = 8
"""Texts that are all there are tokenized in so many times larger blocks: a call shares them among all cores."""


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
        self._made: TokenRuns | None = None
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
        if self._made is not None:
            return
        inputs = self._requests.get_inputs()
        if fixed := [one for one in inputs if one.shape and isinstance(one.shape[-1], int)]:
            raise InvalidArgument(
                f"the model's input '{fixed[0].name}' has the fixed length {fixed[0].shape[-1]}, and texts have any: "
                "export it with an open length"
            )
        types = [(one.name, _core.element_type_of(np.dtype(one.dtype))) for one in inputs]
        given = self._settings.pooling
        pooling = [] if given is None else list(given) if isinstance(given, tuple) else [given]
        self._made = TokenRuns(self._requests, _core.TokenModel(types, self._settings.output, pooling))

    def rows(
        self, texts: Iterable[Text], truncate: Truncate = True, counts: list[int] | None = None, skip: int = 0
    ) -> Iterator[Rows]:
        """Yield the row of each text, in order.

        Args:
            texts: The texts, or pairs of them; read as needed.
            truncate: Where they are cut, or whether.
            counts: Receives the number of tokens of each.
            skip: Tokens of a prompt, which are not pooled.
        """
        _check(truncate)
        yield from self.of_tokens().in_order(self._tokens(texts, truncate, counts), skip)

    def table(
        self, texts: Sequence[Text], truncate: Truncate = True, counts: list[int] | None = None, skip: int = 0
    ) -> Rows:
        """Return the rows of all texts."""
        _check(truncate)
        tokens = self._tokens(texts, truncate, counts, _TIMES)
        if len(texts) == 1:  # in this thread
            return self._noted(self.of_tokens().run(next(tokens), skip))
        table = _Table(len(texts))
        self.of_tokens().fill(table.put, tokens, skip)
        return self._noted(table.rows(self))

    async def table_async(
        self,
        texts: Sequence[Text],
        truncate: Truncate,
        counts: list[int] | None,
        timeout: float | None,
        when_full: Literal["block", "reject"],
        skip: int = 0,
    ) -> Rows:
        """Do the same without blocking the event loop. No more texts are pending than keep the pool busy, so that those
        of other callers come in between.
        """
        _check(truncate)
        if timeout is not None:
            checks.number("timeout", timeout)
        checks.choice("when_full", when_full, ("block", "reject"))
        runs, begin = self.of_tokens(), time.monotonic()
        pending: deque[tuple[_core.TokenBlock, asyncio.Future[Rows]]] = deque()
        table = _Table(len(texts))
        asked = answered = 0

        async def answer() -> None:
            nonlocal answered
            block, future = pending[0]
            rows = await future
            pending.popleft()
            if counts is not None:
                counts.extend(block.lengths)
            table.put(slice(answered, answered + len(rows)), rows)
            answered += len(rows)

        try:
            each = self._at_once() if len(texts) > 1 else 1
            # One is tokenized while the other runs, unless a short queue has room for one alone.
            most = 2 if 2 * each <= self._requests.together else 1
            for some in blocks(texts, each):
                if len(pending) == most:
                    await answer()
                block = runs.block(skip)
                pending.append((block, runs.future(block)))
                then = _submitter(runs, block, timeout, begin, when_full == "reject")
                self._tokenizer.encode_later(some, asked, truncate, then, timeout, begin)
                asked += len(some)
            while pending:
                await answer()
        finally:
            for block, future in pending:
                block.cancel()
                if future.done() and not future.cancelled():
                    future.exception()  # else it is said that nobody asked for it
        return self._noted(table.rows(self))

    def _at_once(self) -> int:
        return max(1, min(BLOCK, self._requests.at_once // 2, self._requests.together))

    def of_tokens(self) -> TokenRuns:
        """Return what runs tokens.

        Raises:
            InvalidArgument: As `check`.
        """
        self.check()
        assert self._made is not None
        return self._made

    def _tokens(
        self, texts: Iterable[Text], truncate: Truncate, counts: list[int] | None, times: int = 1
    ) -> Iterator[Tokens]:
        number = 0
        for block in blocks(texts, times * BLOCK, times):
            found: Iterable[list[Tokens]]
            try:
                found = [self._tokenizer.encode(block, number, truncate)]
            except InvalidArgument:  # behind the texts before it
                found = (self._tokenizer.encode([text], number + i, truncate) for i, text in enumerate(block))
            for some in found:
                if counts is not None:
                    counts.extend(len(tokens.ids) for tokens in some)
                yield from some
            number += len(block)

    def _noted(self, table: Rows) -> Rows:
        self._width = table.shape[1]
        return table


def _submitter(
    runs: TokenRuns, block: _core.TokenBlock, timeout: float | None, begin: float, limited: bool
) -> Callable[[list[Tokens] | Exception], None]:
    """Return what is called with a block's tokens, or with why there are none, in a thread that tokenizes."""

    def submit(found: list[Tokens] | Exception) -> None:
        try:
            if isinstance(found, Exception):
                raise found
            block.fill(found, None, timeout, begin)
        except Exception as error:
            block.fail(error)
        else:
            runs.submit(block, waits=False, limited=limited)

    return submit


class _Table:
    """Rows of one width: that of the first ones."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: Rows | None = None

    def put(self, places: list[int] | slice, rows: Rows) -> None:
        if self._rows is None:
            if isinstance(places, slice) and len(rows) == self._count:
                self._rows = rows  # not copied
                return
            self._rows = np.empty((self._count, rows.shape[1]), np.float32)
        self._rows[places] = rows

    def rows(self, runs: Runs) -> Rows:
        return np.empty((0, runs.width()), np.float32) if self._rows is None else self._rows


def _check(truncate: object) -> None:
    checks.choice("truncate", truncate, (True, False, "right", "left"))
