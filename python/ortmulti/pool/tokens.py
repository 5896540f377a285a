"""Runs of texts' tokens: each is a request, and its answer a row of a table. The core makes requests and rows, so that
a text costs the interpreter next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortmulti import _core
from ortmulti._runtime import callbacks
from ortmulti.errors import ClosedError, Error
from ortmulti.pool import many
from ortmulti.pool.futures import Outcome, Submitted

if TYPE_CHECKING:
    import asyncio

    from ortmulti.pool.pool import Requests

__all__ = ["Rows", "TokenRuns", "Tokens"]

Rows = NDArray[np.float32]


class Tokens(NamedTuple):
    """The tokens of a text, and their types where these are not all 0."""

    ids: Sequence[int] | NDArray[Any]
    types: Sequence[int] | None = None

    @property
    def nbytes(self) -> int:
        """About what they take."""
        return 40 * len(self.ids)


class TokenRuns:
    """Has a model run on tokens.

    Args:
        requests: Its sessions.
        model: Its inputs, and what is made of its output.

    Attributes:
        model: That.
    """

    def __init__(self, requests: Requests, model: _core.TokenModel) -> None:
        self._requests = requests
        self.model = model

    def run(self, tokens: Tokens, skip: int) -> Rows:
        """Return the row of one text, as a table: in this thread if a session is idle.

        Args:
            tokens: The text's.
            skip: So many of the first are not pooled.
        """
        block = self.block(skip)
        block.fill([tokens], None, None, 0.0)
        self._hand_over(block, lambda core: core.run_tokens(block))
        table, errors = block.take()
        if table is None:
            raise errors[0][1] or CancelledError
        return table

    def in_order(self, tokens: Iterator[Tokens], skip: int) -> Iterator[Rows]:
        """Yield the row of each text, otherwise as `Pool.map` does."""
        submitted = partial(_SubmittedTokens, self, skip)
        return many.in_order(_submit, tokens, self._ahead(), submitted)  # type: ignore[arg-type, return-value]

    def fill(self, put: Callable[[list[int], Rows], None], tokens: Iterator[Tokens], skip: int) -> None:
        """Call ``put`` with the places of some texts and their rows, in any order, until all are there."""
        failed: dict[int, Exception] = {}
        submitted = partial(_SubmittedTokens, self, skip)
        placed = many.until_they_fail(tokens, failed)  # type: ignore[arg-type]
        with closing(many.answered(_submit, placed, self._ahead(), submitted)) as answered:
            for places, _, outcomes in answered:
                if isinstance(outcomes, list):
                    for place, outcome in zip(places, outcomes, strict=True):
                        if isinstance(outcome, BaseException):
                            many.add_number(outcome, place)
                            raise outcome
                put(places, outcomes)  # type: ignore[arg-type]
        for error in failed.values():
            raise error

    def block(self, skip: int) -> _core.TokenBlock:
        """Make a block of texts, to be filled and submitted."""
        return _core.TokenBlock(self.model, skip)

    def future(self, block: _core.TokenBlock) -> asyncio.Future[Rows]:
        """Return the running event loop's future of the block's table, before the block is submitted."""
        future = block.future()
        if future is None:
            from ortmulti.pool import event_loops

            loop = event_loops.running_loop()
            if event_loops.watch(loop):
                future = block.future()
            else:  # it watches no file descriptors
                answer = loop.create_future()
                block.follow(lambda *_: loop.call_soon_threadsafe(_settle, answer, block))
                return answer
        return future  # type: ignore[return-value]

    def follow(self, block: _core.TokenBlock, call: Callable[..., object]) -> None:
        """Have a block's answer told by the thread that delivers completions, before the block is submitted.

        Raises:
            ClosedError: The interpreter is ending.
        """
        _start()
        block.follow(call)

    def submit(self, block: _core.TokenBlock, *, waits: bool, limited: bool = False, whole: bool = True) -> None:
        """Submit a block that is filled. What is refused has the error in place of its row.

        Args:
            block: The texts.
            waits: Whether this thread waits for room in the queue.
            limited: Whether without room the rest of the block is refused.
            whole: Whether what was submitted of such a block is cancelled.
        """
        self._hand_over(block, lambda core: core.submit_tokens(block, waits, limited), limited and whole)

    def _hand_over(self, block: _core.TokenBlock, call: Any, all_or_none: bool = False) -> None:
        try:
            _start()  # that thread frees what belongs to Python
            if (span := self._requests._span()) is not None:
                block.follow(span.end)
            while True:
                core = self._requests._members.core
                try:
                    call(core)
                    return
                except ClosedError:
                    if core is self._requests._members.core:
                        raise  # else with the next model
        except Error as error:
            block.fail(error)
            if all_or_none:
                block.end()

    def _ahead(self) -> many.Ahead:
        requests = self._requests
        length = None if requests._length is None else _length
        return requests._ahead(None, requests._batch_size, length)


class _SubmittedTokens(Submitted):
    def __init__(self, runs: TokenRuns, skip: int) -> None:
        super().__init__()
        self.runs, self.skip = runs, skip

    def outcomes(self) -> list[Outcome]:
        """Return a table, which is a list of rows, where all have one."""
        self._check_fork()
        block: Any = self.requests[0]
        block.wait()
        table, errors = block.take()
        if not errors:
            return table  # type: ignore[no-any-return]
        outcomes: list[Any] = [None] * len(block.lengths) if table is None else list(table)
        for place, error in errors:
            outcomes[place] = error or CancelledError()
        return outcomes


def _start() -> None:
    if not callbacks.start():
        raise ClosedError("the interpreter is ending: the pool takes no more requests")


def _submit(tokens: list[Any], to: Submitted) -> None:
    assert isinstance(to, _SubmittedTokens)
    block = to.runs.block(to.skip)
    to.requests.append(block)  # type: ignore[arg-type] # it is asked for the same
    block.fill(tokens, None, None, 0.0)
    to.runs.submit(block, waits=True)


def _length(tokens: Any) -> int:
    return len(tokens.ids)


def _settle(future: Any, block: _core.TokenBlock) -> None:
    if future.done():
        return
    table, errors = block.take()
    for _, error in errors:
        if error is not None:
            future.set_exception(error)
            return
    future.set_result(table)
