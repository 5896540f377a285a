"""Objects of one process: some have a ``close``, and none can be pickled."""

from __future__ import annotations

import abc
from collections.abc import Callable
from types import TracebackType
from typing import Never, TypeVar

_Self = TypeVar("_Self", bound="Closing")


def stays_here(instead: str) -> Callable[[object], Never]:
    """Return a ``__reduce__`` that raises TypeError with what to do instead."""

    def reduce(self: object) -> Never:
        raise TypeError(
            f"{type(self).__name__} objects cannot be copied or pickled, since they belong to their process: {instead}"
        )

    return reduce


class Closing(abc.ABC):
    """An object that the end of the ``with`` block closes."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free its resources."""

    __reduce__ = stays_here("load the model in each process")

    def __enter__(self: _Self) -> _Self:  # jedi, and so IPython, completes no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
