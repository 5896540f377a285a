"""A pool that tests hold up."""

from __future__ import annotations

from typing import Any

import ortmulti


class Held:
    """A pool whose core keeps blocks of texts back until they are let go."""

    def __init__(self, pool: Any, at_once: int = 8) -> None:
        self.pool, self.at_once, self.core = pool, at_once, self
        self.blocks: list[Any] = []
        self.texts: list[int] = []
        self.fails: Exception | None = None
        self.holds = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    @property
    def _members(self) -> Any:
        return self

    def submit_tokens(self, block: Any, waits: bool, limited: bool) -> None:
        assert (waits, limited) == (False, True)
        self.texts.append(len(block.lengths))
        if self.fails is not None:
            raise self.fails
        self.blocks.append(block)
        if not self.holds:
            self.let_go()

    def let_go(self) -> None:
        self.holds = False
        while self.blocks:
            block = self.blocks.pop(0)
            try:
                self.pool._members.core.submit_tokens(block, False, True)
            except ortmulti.Error as error:
                block.fail(error)
