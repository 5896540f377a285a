"""Many requests to one pool, with a limited number under way."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortmulti import checks
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.pool.futures import PoolFuture

__all__ = ["Ahead", "JoinedRows", "Rows", "RunSize", "as_done", "by_length", "in_order", "run_rows", "submit_rows"]

Feed: TypeAlias = Mapping[str, Any]
Submit: TypeAlias = Callable[[Feed], PoolFuture]
Length: TypeAlias = Callable[[Feed], int]
"""Of a request that is padded."""
Place = TypeVar("Place")
_SOON = 0.02  # seconds after which requests are submitted, however few were read


def in_order(submit: Submit, feeds: Iterator[Feed], ahead: Ahead) -> Iterator[list[Any]]:
    """Yield the outputs of each feed, in order, with at most ``ahead.pending()`` requests pending. Cancel those at the
    end. Up to twice ``ahead.room()`` are read ahead or answered and not yet yielded.
    """
    pending: deque[tuple[int, Future[list[Any]]]] = deque()
    answered: dict[int, list[Any] | Future[list[Any]]] = {}  # outputs, taken while others run; or what failed
    following = 0
    refused: list[Exception] = []
    future: Future[list[Any]]
    try:
        placed = by_length(_until_it_fails(feeds, refused), ahead, lambda: len(answered))
        for one in itertools.chain(placed, [None]):  # None: that was all
            if one is not None:
                try:
                    future = _submit(submit, one[1])
                except Exception as error:
                    future = Future()
                    future.set_exception(error)
                    refused.append(error)
                pending.append((one[0], future))
            while pending and (one is None or len(pending) >= ahead.pending() or pending[0][1].done()):
                index, future = pending.popleft()
                answered[index] = future
                with suppress(CancelledError):
                    if future.exception() is None:
                        answered[index] = result = future.result()
                        ahead.answered(result)
                while following in answered:
                    outputs = answered.pop(following)
                    yield outputs if isinstance(outputs, list) else _result(outputs, following)
                    following += 1
    finally:
        for _, future in pending:
            future.cancel()


def as_done(submit: Submit, feeds: Iterator[Feed], ahead: Ahead) -> Iterator[tuple[int, PoolFuture]]:
    """Yield each feed's place and future when the future is done; otherwise as `in_order`."""
    pending: dict[PoolFuture, int] = {}
    done: SimpleQueue[PoolFuture] = SimpleQueue()
    refused: list[Exception] = []
    try:
        for index, feed in by_length(_until_it_fails(feeds, refused), ahead):
            try:
                future = _submit(submit, feed)
            except Exception as error:
                _number(error, index)
                refused.append(error)
                continue
            pending[future] = index
            future.add_done_callback(done.put)  # type: ignore[arg-type]
            while len(pending) >= ahead.pending():
                future = done.get()
                if not future.cancelled() and future.exception() is None:
                    ahead.answered(future.result())
                yield pending.pop(future), future
        while pending:
            future = done.get()
            yield pending.pop(future), future
        if refused:
            raise refused[0]
    finally:
        for future in pending:
            future.cancel()


def _until_it_fails(feeds: Iterator[Feed], refused: Sequence[Exception]) -> Iterator[tuple[int, Any]]:
    """Number the feeds, until one was refused. An error stands for the feed that did not come."""
    index = -1
    try:
        for index, feed in enumerate(feeds):
            yield index, feed
            if refused:
                return
    except Exception as error:
        yield index + 1, error


def _submit(submit: Submit, feed: Feed | Exception) -> PoolFuture:
    if isinstance(feed, Exception):
        raise feed
    return submit(feed)


def _result(future: Future[list[Any]], index: int) -> list[Any]:
    try:
        return future.result()
    except Exception as error:
        _number(error, index)
        raise


def _number(error: Exception, index: int) -> None:
    note = f"This is feed {index}, counted from 0."
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


class Ahead:
    """How many requests are read before they are submitted, sorted by length, and how many are pending.

    Args:
        most: So many are pending.
        length: Gives the length of a request; then ``most`` are read ahead, and a quarter of them is pending. None:
            they are submitted as they are read.
        first: As soon as so many are read, those of similar lengths can be submitted.
        grows: More are read ahead and pending, as many as are answered in 2 s, where they are small: the more are
            sorted, the less is padded. The more are pending, the longer may Python do something else, such as collect
            garbage: 0.1 s with 60,000 texts.
    """

    _SECONDS = 2.0
    _BYTES = 128 << 20  # of inputs, and of outputs
    _OBJECTS = 1024  # bytes of a request beside its arrays
    _EACH = 16  # such a one of them is measured

    def __init__(self, most: int, length: Length | None, first: int = 1, grows: bool = False) -> None:
        self.length, self.first = length, first
        self._most, self._grows = most, grows and length is not None
        self._inputs, self._outputs = _Mean(), _Mean()
        self._begin = 0.0  # when the first one was read
        self._limit = most

    def read(self, feed: Any) -> None:
        """Measure what was read, which may be no request."""
        self._begin = self._begin or time.monotonic()
        if self._grows and self._inputs.due(self._EACH) and isinstance(feed, Mapping):
            self._inputs.add(self._size(feed.values()))

    def answered(self, outputs: list[Any]) -> None:
        if self._grows and self._outputs.due(self._EACH):
            self._outputs.add(self._size(outputs))
            each = self._OBJECTS + max(self._inputs.mean, self._outputs.mean)
            rate = self._outputs.seen / (time.monotonic() - self._begin)
            self._limit = max(self._most, int(min(self._BYTES / each, self._SECONDS * rate)))

    def _size(self, arrays: Iterable[Any]) -> int:
        return sum(getattr(array, "nbytes", self._BYTES) for array in arrays)

    def room(self, answered: int = 0) -> int:
        """How many may wait to be submitted, while so many answers are kept."""
        return min(self._limit, 2 * self._limit - answered)

    def pending(self) -> int:
        if self.length is None:
            return self._most
        return max(self._most if self._grows else 1, self._limit // 4)


class _Mean:
    def __init__(self) -> None:
        self.mean, self.seen, self._count = 0.0, 0, 0

    def due(self, each: int) -> bool:
        self.seen += 1
        return self.seen % each == 1

    def add(self, value: float) -> None:
        self._count += 1
        self.mean += (value - self.mean) / self._count


def by_length(
    placed: Iterable[tuple[Place, Feed]], ahead: Ahead, answered: Callable[[], int] = lambda: 0
) -> Iterator[tuple[Place, Feed]]:
    """Yield feeds with their places by their lengths, upwards and downwards in turns.

    Three quarters of all that were read are kept, but at most ``ahead.room(answered())``, so that the first ones soon
    run. What is read later joins those of its length unless these have gone.
    """
    if ahead.length is None:
        yield from placed
        return
    upwards, at = 1, 0
    these: list[tuple[int, int, Place, Feed]] = []
    turned: list[tuple[int, int, Place, Feed]] = []  # for the way back

    def take() -> tuple[Place, Feed]:
        nonlocal these, turned, upwards, at
        if not these:
            these, turned, upwards = turned, these, -upwards
        at, _, place, feed = heappop(these)
        return place, feed

    begin = time.monotonic()
    for read, (place, feed) in enumerate(placed):
        ahead.read(feed)
        key = upwards * ahead.length(feed)
        if key >= at:
            heappush(these, (key, read, place, feed))
        else:
            heappush(turned, (-key, read, place, feed))
        if 0 < read < ahead.first and time.monotonic() < begin + _SOON:
            continue
        most = max(0, min(ahead.room(answered()), 3 * read // 4))
        while len(these) + len(turned) > most:
            yield take()
    while these or turned:
        yield take()


class RunSize:
    """The number of rows of a run, found by timing the runs.

    It grows while the start of runs takes a notable part of their time, and then as long as larger runs are faster.
    They stop being faster beyond the processor's caches, or when all of a GPU's cores are busy. Runs in the background
    begin with one row and stay below 10 ms: others may wait for them.
    """

    _FIRST = 32
    _LONGEST = 10e-3  # seconds of a run in the background
    _SHORT, _GAIN, _TRIES = 1e-3, 1.05, 3  # seconds of a run; of rows a second; of a size, as timings vary

    def __init__(self, fixed: int | None = None, background: bool = False) -> None:
        first = 1 if background else self._FIRST
        self.rows = first if fixed is None else checks.integer("rows", fixed, 1, checks.SIZE_MAX)
        self._background = background
        self._grows = fixed is None
        self._rates: list[float] = []  # of this size, in rows a second
        self._most = 0.0  # of smaller sizes

    def record(self, rows: int, seconds: float) -> None:
        """Record a run. Runs of other sizes than the newest are ignored."""
        if not self._grows or rows != self.rows:
            return
        if self._background and 2 * seconds > self._LONGEST:
            self._grows = False
            return
        self._rates.append(rows / max(seconds, 1e-9))
        most = max(self._rates)
        if seconds < self._SHORT or most > self._GAIN * self._most:
            self.rows *= 4 if seconds < self._SHORT / 8 else 2
            self._rates, self._most = [], max(most, self._most)
        elif len(self._rates) == self._TRIES:
            self._grows = False
            if most < self._most:
                self.rows //= 2


class Rows:
    """The rows of several arrays.

    Raises:
        InvalidType: ``arrays`` is not a mapping.
        InvalidArgument: The arrays have different numbers of rows, or there is no array.
    """

    def __init__(self, arrays: object) -> None:
        if not isinstance(arrays, Mapping):
            raise InvalidType(f"arrays is a dict of the inputs' names and arrays, not {type(arrays).__name__}")
        self._arrays = {name: _column(value) for name, value in arrays.items()}
        self.ragged = any(isinstance(value, _Ragged) for value in self._arrays.values())
        """Whether rows differ in their shapes: then each runs by itself, or with others that the pool joins."""
        shapes = {name: tuple(value.shape) for name, value in self._arrays.items()}
        counts = {shape[:1] for shape in shapes.values()}
        if len(counts) != 1 or counts == {()}:
            found = ", ".join(f"{name!r} {shape}" for name, shape in shapes.items()) or "none"
            raise InvalidArgument(f"all arrays need the same first dimension, the rows; the shapes are: {found}")
        [[self.count]] = counts

    def cut(self, size: RunSize) -> Iterator[tuple[range, Feed]]:
        """Yield the rows of each run and its feed. Arrays without rows give one feed of empty arrays."""
        start = 0
        while start < max(self.count, 1):
            end = min(start + size.rows, self.count)
            yield range(start, end), {name: value[start:end] for name, value in self._arrays.items()}
            start = max(end, 1)


class _Ragged:
    """Rows of different shapes, of which one at a time is an array."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows
        self._dtype = np.asarray(next((row for row in rows if np.size(row)), [])).dtype
        self.shape = (len(rows),)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        row = self._rows[rows.start]
        return np.asarray(row, None if np.size(row) else self._dtype)[None]


def _column(value: Any) -> Any:
    if isinstance(getattr(value, "shape", None), tuple) and not getattr(
        getattr(value, "dtype", None), "hasobject", False
    ):
        return value
    of_rows = isinstance(value, Sequence | np.ndarray) and len(value) and isinstance(value[0], Sequence | np.ndarray)
    if of_rows and not isinstance(value[0], str | bytes) and len({np.shape(row) for row in value}) > 1:
        return _Ragged(value)
    return np.asarray(value)


class JoinedRows:
    """The outputs of all rows, from the outputs of runs in the order of their rows.

    Args:
        count: Rows of all runs.
        names: Returns the outputs' names, for an error.
    """

    def __init__(self, count: int, names: Callable[[], Sequence[str]]) -> None:
        self.outputs: list[Any] = []
        self._count, self._names = count, names

    def add(self, rows: range, answer: list[Any]) -> None:
        """Write the outputs of a run into the arrays of all rows.

        Raises:
            InvalidArgument: An output is not an array with the run's rows, or its other dimensions differ between runs.
        """
        if not self.outputs:
            whole = len(rows) == self._count
            self.outputs = answer if whole else [_enlarged(part, self._count) for part in answer]
        for index, (joined, part) in enumerate(zip(self.outputs, answer, strict=True)):
            if not isinstance(part, np.ndarray) or part.shape != (len(rows), *joined.shape[1:]):
                found = f"shape {part.shape}" if isinstance(part, np.ndarray) else type(part).__name__
                wanted = f"({len(rows)}, ...)" if rows.start == 0 else str((len(rows), *joined.shape[1:]))
                raise InvalidArgument(
                    f"output {self._names()[index]!r} of the run from row {rows.start} on is {found}, not {wanted}. "
                    "map_rows needs a row of output for each row of input: name others in output_names, or use map"
                )
            if part is not joined:
                joined[rows.start : rows.stop] = part


def _enlarged(part: Any, count: int) -> Any:
    """Make an array for one output of all runs. The caller refuses an output that is not an array."""
    return np.empty((count, *part.shape[1:]), part.dtype) if isinstance(part, np.ndarray) else part


def run_rows(
    run: Callable[[Feed], list[Any]], pieces: Iterator[tuple[range, Feed]], size: RunSize, to: JoinedRows
) -> None:
    """Run pieces one after another."""
    for rows, feed in pieces:
        begin = time.perf_counter()
        answer = run(feed)
        size.record(len(rows), time.perf_counter() - begin)
        to.add(rows, answer)


def submit_rows(
    submit: Submit, pieces: Iterator[tuple[range, Feed]], size: RunSize, ahead: Ahead, to: JoinedRows
) -> None:
    """Run pieces with at most ``ahead.pending()`` requests pending. Cancel those after a failure."""
    pending: deque[tuple[range, PoolFuture]] = deque()

    def take() -> None:
        rows, future = pending.popleft()
        answer = future.result()
        ahead.answered(answer)
        if timing := future.timing:
            size.record(len(rows), timing.copied + timing.ran)
        to.add(rows, answer)

    try:
        for rows, feed in pieces:
            pending.append((rows, submit(feed)))
            if len(pending) >= ahead.pending():
                take()
        while pending:
            take()
    finally:
        for _, future in pending:
            future.cancel()
