"""A context manager for objects with a ``close``."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Never, TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing(abc.ABC):
    """An object that the end of the ``with`` block closes."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free its resources."""

    def __reduce__(self) -> Never:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled, since it belongs to its process: load the model in "
            "each process"
        )

    def __enter__(self: _Self) -> _Self:  # jedi, and so IPython, completes no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
