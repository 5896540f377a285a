"""Texts of several callers that are run together, as one block. An error of one caller's texts is his alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from ortmulti.errors import DeadlineExceeded, Error
from ortmulti.pool.tokens import Rows, TokenRuns, Tokens
from ortmulti.text.tokens import Text, Tokenizer, Truncate

if TYPE_CHECKING:
    from ortmulti.text.model import TextModel

__all__ = ["Part", "Together", "embed_together"]


class Part(NamedTuple):
    """What one caller gets.

    Attributes:
        rows: His of the table's.
        tokens: Of all his texts.
    """

    rows: slice
    tokens: int


class Together:
    """Runs of them. `embed_together` makes one, and begins it.

    Args:
        runs, tokenizer: The model's.
        sizes: The number of each caller's texts.
        then: Called once with this object, when all are answered, by the thread that delivers completions.
        finish: Makes vectors of a table of rows.

    Attributes:
        parts: For each caller, once they are answered: what he gets, or why nothing.
    """

    def __init__(
        self,
        runs: TokenRuns,
        tokenizer: Tokenizer,
        sizes: Sequence[int],
        then: Callable[[Together], object],
        finish: Callable[[Rows], Rows],
    ) -> None:
        self.parts: list[Part | Exception] = []
        self._runs, self._tokenizer = runs, tokenizer
        self._ends = [0, *accumulate(sizes)]
        self._then: Callable[[Together], object] | None = then
        self._finish = finish
        self._rows: Rows | None = None
        self._failed: dict[int, Exception] = {}

    def begin(self, texts: Sequence[Text], truncate: Truncate, timeout: float | None, skip: int) -> None:
        """Have the texts tokenized and run. Without room in the queue, those that have none are refused."""
        begin = time.monotonic()
        block = self._block = self._runs.block(skip)
        self._runs.follow(block, self._arrived)

        def submit(found: list[Tokens] | Exception) -> None:
            try:
                tokens = found if isinstance(found, list) else self._each(found, texts, truncate)
                block.fill(tokens, None, timeout, begin)
            except Exception as error:
                block.fail(error)
            else:
                self._runs.submit(block, waits=False, limited=True, whole=False)

        self._tokenizer.encode_later(texts, 0, truncate, submit, timeout, begin)

    def cancel(self) -> None:
        """Nobody waits for them any more."""
        self._block.cancel()

    def vectors(self) -> Rows:
        """Return the vectors of all parts, which may take some time. To be called once."""
        assert self._rows is not None
        return self._finish(self._rows)

    def _each(self, error: Exception, texts: Sequence[Text], truncate: Truncate) -> list[Tokens]:
        """Tokenize the texts of each caller alone, after an error of any of them."""
        if isinstance(error, DeadlineExceeded):
            raise error
        tokens: list[Tokens] = []
        for index in range(len(self._ends) - 1):
            try:
                tokens += self._tokenizer.encode(texts[self._ends[index] : self._ends[index + 1]], 0, truncate)
            except Exception as own:
                own.__traceback__ = None if isinstance(own, Error) else own.__traceback__
                self._failed[index] = own
        if not tokens:
            raise error
        return tokens

    def _arrived(self, *_: object) -> None:
        self._rows, errors = self._block.take()
        lengths = self._block.lengths
        place = 0
        for index in range(len(self._ends) - 1):
            if index in self._failed:
                self.parts.append(self._failed[index])
                continue
            first, place = place, place + self._ends[index + 1] - self._ends[index]
            # Of a block that never ran there is one error.
            wrong: list[Any] = [error for row, error in errors if first <= row < place or not lengths]
            if wrong:
                self.parts.append(next(filter(None, wrong), None) or CancelledError())
            else:
                self.parts.append(Part(slice(first, place), sum(lengths[first:place])))
        then, self._then = self._then, None  # it may know this object
        if then is not None:
            then(self)


def embed_together(
    model: TextModel,
    texts: Sequence[Text],
    sizes: Sequence[int],
    then: Callable[[Together], object],
    *,
    prompt: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
    truncate: Truncate = True,
    timeout: float | None = None,
) -> Together:
    """Begin to embed texts of several callers.

    Args:
        model: The model.
        texts: Those of all callers, one caller's behind another's.
        sizes, then: See `Together`.
        prompt, dimensions, normalize, truncate, timeout: As `TextModel.embed_async` has them.

    Raises:
        InvalidArgument, InvalidType: The arguments are wrong, other than a text.
        Error: As `Pool.run`.
    """
    items, skip = model._prompted(texts, prompt)
    model._check_dimensions(dimensions)
    finish = partial(model._finished, dimensions=dimensions, normalize=model._normalizes(normalize))
    together = Together(model._runs.of_tokens(), model._tokenizer, sizes, then, finish)
    together.begin(items, truncate, timeout, skip)
    return together
