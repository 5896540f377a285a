"""A way to run the network, on either side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ortmulti.tools.strategies.base import Array


@dataclass(frozen=True)
class Way:
    """What is timed.

    Attributes:
        run: one inference, done on return; gives its output.
        array: a run's output as an array.
    """

    run: Callable[[], Any]
    array: Callable[[Any], Array]


@dataclass(frozen=True)
class Contender:
    """One line of a setting's table.

    Attributes:
        side: "ortmulti" or "pytorch".
        name: what is done there.
        open: makes it ready; what it returns is left open while it is measured.
    """

    side: str
    name: str
    open: Callable[[], AbstractContextManager[Way]]
