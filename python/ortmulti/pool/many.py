"""Many requests to one pool, of which a limited number is under way."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from ortmulti._runtime import checks
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.pool.futures import PoolFuture

__all__ = ["as_done", "cut_rows", "in_order", "join_rows"]

Feed: TypeAlias = Mapping[str, Any]
Submit: TypeAlias = Callable[[Feed], PoolFuture]


def in_order(submit: Submit, feeds: Iterator[Feed], most: int) -> Iterator[list[Any]]:
    """Yield the outputs of each feed, in order, with at most ``most`` requests pending. Cancel those at the end."""
    pending: deque[PoolFuture] = deque()
    try:
        for feed in feeds:
            pending.append(submit(feed))
            if len(pending) >= most:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def as_done(submit: Submit, feeds: Iterator[Feed], most: int) -> Iterator[tuple[int, PoolFuture]]:
    """Yield each feed's place and future when the future is done; otherwise as `in_order`."""
    pending: dict[PoolFuture, int] = {}
    done: SimpleQueue[PoolFuture] = SimpleQueue()
    try:
        for index, feed in enumerate(feeds):
            future = submit(feed)
            pending[future] = index
            future.add_done_callback(done.put)  # type: ignore[arg-type]
            while len(pending) >= most:
                future = done.get()
                yield pending.pop(future), future
        while pending:
            future = done.get()
            yield pending.pop(future), future
    finally:
        for future in pending:
            future.cancel()


def cut_rows(arrays: object, rows: int) -> tuple[int, Iterator[Feed]]:
    """Cut arrays into feeds of ``rows`` rows. Arrays without rows give one feed of empty arrays.

    Returns:
        The number of rows, and the feeds.

    Raises:
        InvalidType: ``arrays`` is no mapping.
        InvalidArgument: The arrays do not have the same number of rows, or there is no array.
    """
    checks.integer("rows", rows, 1, checks.SIZE_MAX)
    if not isinstance(arrays, Mapping):
        raise InvalidType(f"arrays is a dict of the inputs' names and arrays, not {type(arrays).__name__}")
    whole = {
        name: value if isinstance(getattr(value, "shape", None), tuple) else np.asarray(value)
        for name, value in arrays.items()
    }
    shapes = {name: tuple(value.shape) for name, value in whole.items()}
    counts = {shape[:1] for shape in shapes.values()}
    if len(counts) != 1 or counts == {()}:
        found = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items()) or "none"
        raise InvalidArgument(f"all arrays need the same first dimension, the rows; the shapes are: {found}")
    [[count]] = counts

    def feeds() -> Iterator[Feed]:
        for start in range(0, max(count, 1), rows):
            yield {name: value[start : start + rows] for name, value in whole.items()}

    return count, feeds()


def join_rows(
    answers: Iterator[list[Any]], count: int, rows: int, names: Callable[[], Sequence[str]]
) -> list[np.ndarray[Any, Any]]:
    """Write the outputs of runs of ``rows`` rows into one array for each output.

    Args:
        answers: A generator of the runs' outputs; it is closed.
        count: Rows of all runs.
        names: Returns the outputs' names, for an error.

    Raises:
        InvalidArgument: An output is not an array with the run's rows, or its other dimensions differ between runs.
    """
    joined: list[Any] = []
    with contextlib.closing(answers):  # type: ignore[type-var]  # generators have `close`
        for start, answer in zip(range(0, max(count, 1), rows), answers, strict=True):
            size = min(rows, count - start)
            if not joined:
                joined = answer if size == count else [_enlarged(part, count) for part in answer]
            for index, (whole, part) in enumerate(zip(joined, answer, strict=True)):
                if not isinstance(part, np.ndarray) or part.shape != (size, *whole.shape[1:]):
                    found = f"shape {part.shape}" if isinstance(part, np.ndarray) else type(part).__name__
                    wanted = f"({size}, ...)" if start == 0 else str((size, *whole.shape[1:]))
                    raise InvalidArgument(
                        f"output {names()[index]!r} of the run from row {start} on is {found}, not {wanted}: map_rows "
                        "joins outputs with the inputs' rows; name others in output_names, or use map"
                    )
                if part is not whole:
                    whole[start : start + size] = part
    return joined


def _enlarged(part: Any, count: int) -> Any:
    """Make an array for one output of all runs. The caller refuses an output that is not an array."""
    return np.empty((count, *part.shape[1:]), part.dtype) if isinstance(part, np.ndarray) else part
