"""How a pool joins requests, and checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortmulti.errors import InvalidArgument, InvalidType

__all__ = ["Batching", "check_int", "check_queue", "check_seconds"]


@dataclass(frozen=True)
class Batching:
    """How a pool joins requests into one run.

    Requests are joined whose inputs have the same names and types, and the same dimensions but for ``axis``'s; each
    gets its part of the outputs. What cannot be joined, such as a request with ``run_options`` or without inputs, runs
    alone. If a joint run fails, each of its requests is run alone, so that only those to blame fail. The model must
    treat the parts of a batch independently, and its outputs must have ``axis`` too: if one has not, the requests are
    run alone, those like them are not joined any more, and a warning (logger ``ortmulti``) and `PoolStats` say so.

    Attributes:
        max_size: The largest size of a joint run along ``axis``; 2 or more.
        max_delay_ms: How long the first request of a joint run waits for others, in milliseconds; default 0: only what
            waits already is joined.
        axis: The dimension of all inputs and outputs along which they are joined; default 0.
        sizes: The sizes that runs have along ``axis``, ascending, the last one ``max_size``: what is smaller is padded
            to the next one with copies of its last row, whose outputs are dropped. Default empty: any size. For models
            whose runs cost more whenever the shape changes, such as convolutions on GPUs, for which cuDNN makes new
            plans then.

    Raises:
        InvalidArgument, InvalidType: A value that cannot be.
    """

    max_size: int
    max_delay_ms: float = 0.0
    axis: int = 0
    sizes: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_int("max_size", self.max_size, 2)
        check_int("axis", self.axis, 0)
        check_seconds("max_delay_ms", self.max_delay_ms)
        given: object = self.sizes
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise InvalidType(f"sizes is a sequence of ints, not {given!r}")
        sizes = tuple(given)
        for size in sizes:
            check_int("each of sizes", size, 1)
        if sizes and (list(sizes) != sorted(set(sizes)) or sizes[-1] != self.max_size):
            raise InvalidArgument(f"sizes ascend, and the last one is max_size, {self.max_size}; not {sizes}")
        object.__setattr__(self, "sizes", sizes)

    def padded(self, size: int) -> int:
        """The size with which requests of this size together run."""
        return next((larger for larger in self.sizes if larger >= size), size)


def check_queue(max_queue: object, batching: object) -> None:
    """Raises InvalidArgument or InvalidType for what cannot be."""
    if max_queue is not None:
        check_int("max_queue", max_queue, 0)
    if batching is not None and not isinstance(batching, Batching):
        raise InvalidType(f"batching is an ortmulti.Batching, not {batching!r}")


def check_int(name: str, value: object, minimum: int) -> None:
    """Raises InvalidArgument or InvalidType for what is no int of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(f"{name} is an int, not {value!r}")
    if not minimum <= value < 2**63:
        raise InvalidArgument(f"{name} is {minimum} or more, not {value}")


def check_seconds(name: str, value: object) -> None:
    """Raises InvalidArgument or InvalidType for what is no number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{name} is a number, not {value!r}")
    if not 0 <= value < float("inf"):
        raise InvalidArgument(f"{name} is 0 or more, not {value}")
