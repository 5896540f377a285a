"""Many requests to one pool, with a limited number under way."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortmulti import checks
from ortmulti._runtime import native
from ortmulti.errors import ForkError, InvalidArgument, InvalidType
from ortmulti.pool.futures import FORKED, Outcome, PoolFuture, Submitted, Wrap, when_answered

if TYPE_CHECKING:
    from ortmulti._core import PoolRequest

__all__ = [
    "Ahead",
    "JoinedRows",
    "Rows",
    "RunSize",
    "add_number",
    "answered",
    "as_done",
    "by_length",
    "in_order",
    "run_rows",
    "submit_rows",
    "until_they_fail",
]

Feed: TypeAlias = Mapping[str, Any]
Submit: TypeAlias = Callable[[list[Feed], Submitted], None]
Run: TypeAlias = Callable[[Feed], list[Any]]
Length: TypeAlias = Callable[[Feed], int]
"""Of a request that is padded."""
Place = TypeVar("Place")
Item = TypeVar("Item")
_EACH = 16  # requests with a length are submitted together, and one of so many is measured
_LONG = 0.2e-3  # seconds of a run: a thread needs a quarter of it to be handed over to
_LONG_ONES = 2  # in a row: the first run may take longer than later ones
_SOON = 0.02  # seconds after which the next one that is read has all be submitted, however few they are


def in_order(
    submit: Submit,
    feeds: Iterator[Feed],
    ahead: Ahead,
    submitted_as: Callable[[], Submitted],
    run: Run | None = None,
    wrap: Wrap | None = None,
) -> Iterator[list[Any]]:
    """Yield the outputs of each feed, in order, with as many requests pending as ``ahead`` allows. Cancel those at the
    end. With ``run``, it runs each feed in this thread, as long as another thread would not pay.
    """
    answers: dict[int, Outcome] = {}  # that wait for earlier ones
    following = (yield from _in_turn(run, feeds, wrap)) if run else 0
    failed: dict[int, Exception] = {}
    placed = until_they_fail(feeds, failed, following)
    with closing(answered(submit, placed, ahead, submitted_as)) as blocks:
        for indices, submitted, outcomes in blocks:
            answers.update(zip(indices, outcomes, strict=True))
            del submitted, outcomes  # they hold what is yielded
            while (outputs := answers.pop(following, None)) is not None:
                if isinstance(outputs, BaseException):
                    add_number(outputs, following)
                    raise outputs
                yield outputs
                following += 1
            ahead.answers = len(answers)
    for error in failed.values():
        raise error


def _in_turn(run: Run, feeds: Iterator[Feed], wrap: Wrap | None) -> Generator[list[Any], None, int]:
    """Run feeds in this thread until several are long, and yield their outputs. Return the number of feeds."""
    number = long = 0
    try:
        for feed in feeds:
            begin = time.perf_counter()
            outputs = run(feed)
            long = long + 1 if time.perf_counter() - begin >= _LONG else 0
            yield outputs if wrap is None else wrap(outputs)
            number += 1
            if long == _LONG_ONES:
                break
    except Exception as error:
        add_number(error, number)
        raise
    return number


def answered(
    submit: Submit,
    placed: Iterator[tuple[Place, Feed]],
    ahead: Ahead,
    submitted_as: Callable[[], Submitted] = Submitted,
) -> Generator[tuple[list[Place], Submitted, list[Outcome]], None, None]:
    """Submit feeds with as many requests pending as ``ahead`` allows, and yield their places, requests and outcomes as
    they were submitted. Read no more once one is refused. Cancel those that are pending at the end.
    """
    pending: deque[tuple[list[Place], Submitted]] = deque()

    def begin(block: list[tuple[Place, Feed]]) -> None:
        submitted = submitted_as()
        pending.append(([place for place, _ in block], submitted))
        ahead.pending += len(block)
        submit([feed for _, feed in block], submitted)
        ahead.ended |= submitted.refused()

    def first() -> tuple[list[Place], Submitted, list[Outcome]]:
        places, submitted = pending[0]
        outcomes = submitted.outcomes()  # or Ctrl-C: then they are cancelled
        pending.popleft()
        ahead.answered(len(places), outcomes[-1])
        return places, submitted, outcomes

    try:
        for block in itertools.chain(by_length(placed, ahead), [None]):  # None: that was all
            if block:
                begin(block)
            while pending and (block is None or pending[0][1].done() or ahead.full()):
                yield first()
    finally:
        for _, submitted in pending:
            submitted.cancel()


def as_done(submit: Submit, feeds: Iterator[Feed], ahead: Ahead, wrap: Wrap | None) -> Iterator[tuple[int, PoolFuture]]:
    """Yield each feed's place and a future that is done; otherwise as `in_order`."""
    pending: dict[int, PoolRequest] = {}
    submitted = Submitted()
    done: native.SimpleQueue[int] = native.SimpleQueue()
    refused: dict[int, Exception] = {}
    process = os.getpid()

    def begin(block: list[tuple[int, Feed]]) -> None:
        submit([feed for _, feed in block], submitted)
        for (index, _), request in zip(block, submitted.requests, strict=True):
            if isinstance(request, Exception):
                refused[index] = request
                ahead.ended = True
                continue
            pending[index] = request
            ahead.pending += 1
            when_answered(request, partial(_put, done, index))
        submitted.requests.clear()  # which hold answers

    def next_done() -> tuple[int, PoolFuture]:
        if done.empty() and os.getpid() != process:
            raise ForkError(FORKED)
        index = done.get()
        request = pending.pop(index)
        future = PoolFuture(wrap, request)
        future._settle(request)
        ahead.answered(1, future._result)
        return index, future

    try:
        blocks = by_length(until_they_fail(feeds, refused), ahead)
        for block in itertools.chain(blocks, [None]):
            if block:
                begin(block)
            while pending and (block is None or not done.empty() or ahead.full()):
                yield next_done()
        if refused:
            first = min(refused)
            add_number(refused[first], first)
            raise refused[first]
    finally:
        submitted.cancel()  # those that Ctrl-C kept from the pending ones
        for request in pending.values() if os.getpid() == process else ():
            request.cancel()


def _put(done: native.SimpleQueue[int], index: int, *_taken: object) -> None:
    done.put(index)


def until_they_fail(feeds: Iterator[Feed], failed: dict[int, Exception], first: int = 0) -> Iterator[tuple[int, Feed]]:
    """Number the feeds. An error of theirs ends them, and is added to those that failed."""
    index = first - 1
    try:
        for index, feed in enumerate(feeds, first):
            yield index, feed
    except Exception as error:
        add_number(error, index + 1)
        failed[index + 1] = error


def add_number(error: BaseException, index: int) -> None:
    note = f"This is feed {index}, counted from 0."
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


class Ahead:
    """How many requests are read ahead of those that are pending, to be sorted by length, and how many are pending.

    Args:
        most: So many are pending. With ``length`` a quarter of all that were read is, if that is more.
        length: Gives the length of a request. None: they are submitted as they are read.
        limit: So many are read and not answered. None: as many as are answered in 2 s, where they are small, and at
            least twice ``most``. The more are sorted, the less is padded. The more are pending, the longer may Python
            do something else, such as collect garbage: 0.1 s with 60,000 texts.
    """

    _SECONDS = 2.0
    _RATED = 0.1  # seconds after which it is known how many are answered in one
    _BYTES = 128 << 20  # of inputs, and of outputs
    _OBJECTS = 1024  # bytes of a request beside its arrays

    def __init__(self, most: int, length: Length | None, limit: int | None = None) -> None:
        self.length = length
        self.begin = 0.0
        """When the first one was read."""
        self.pending = 0
        self.kept = 0
        """Requests that were read and wait to be submitted."""
        self.answers = 0
        """Those that wait for earlier ones."""
        self.ended = False
        """Whether no more are read: there are none, or one was refused."""
        self._most, self._grows = most, length is not None and limit is None
        self.first = 4 * most if self._grows else 0
        """So many are read before any but the first one is submitted: some of them have similar lengths."""
        self._inputs, self._outputs = _Mean(), _Mean()
        self._answered = 0
        self._limit = limit or 2 * most
        self._most_pending = most if self._grows else max(most, self._limit // 4)

    def read(self, feed: Any) -> None:
        """Measure what was read, which may be no request."""
        if self._grows and (isinstance(feed, Mapping) or hasattr(feed, "nbytes")):
            with suppress(Exception):  # of a class of the caller's
                self._inputs.add(self._size(feed.values() if isinstance(feed, Mapping) else [feed]))
            self._choose()

    def answered(self, count: int, last: Any = None) -> None:
        """So many were answered, of which the last one is measured."""
        self.pending -= count
        self._answered += count
        if self._grows and isinstance(last, list | np.ndarray):
            self._outputs.add(self._size(last if isinstance(last, list) else [last]))
            self._choose()
            self._most_pending = max(self._most, self._limit // 4)

    def _choose(self) -> None:
        limit = self._BYTES / (self._OBJECTS + max(self._inputs.mean, self._outputs.mean))
        seconds = time.monotonic() - self.begin
        if seconds > self._RATED:
            limit = min(limit, self._SECONDS * self._answered / seconds)
        self._limit = max(2 * self._most, int(limit))

    def _size(self, arrays: Iterable[Any]) -> int:
        return sum(getattr(array, "nbytes", self._BYTES) for array in arrays)

    def may_keep(self) -> bool:
        """Return whether more may be read. Up to twice the limit are read or wait for earlier answers."""
        room = 0 if self.length is None or self.ended else min(self._limit, 2 * self._limit - self.answers)
        return self.kept + self.pending < room

    def wanted(self) -> int:
        """Return how many are to be submitted together now."""
        most = self._most_pending
        if self.length is not None and not self.ended:
            most = min(most, max(self._most, (self.kept + self.pending) // 4))
        return min(_EACH, most - self.pending)

    def full(self) -> bool:
        """Return whether there is nothing to do but to wait for answers."""
        nothing_kept = self.length is not None and self.kept == 0 and self.pending > 0
        return (self.wanted() <= 0 or nothing_kept) and not self.may_keep()


class _Mean:
    def __init__(self) -> None:
        self.mean, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._count += 1
        self.mean += (value - self.mean) / self._count


class _Sorted(Generic[Item]):
    """Items by their lengths. They are taken upwards and downwards in turns."""

    def __init__(self) -> None:
        self._items: dict[int, deque[Item]] = {}  # by length
        self._upwards, self._at = -1, -inf
        self._before: list[int] = []  # lengths, downwards negative, of which the first is the next one
        self._behind: list[int] = []  # for the way back
        self.count = 0

    def add(self, length: int, item: Item) -> None:
        self.count += 1
        same = self._items.get(length)
        if same is not None:
            same.append(item)
            return
        self._items[length] = deque([item])
        way = self._upwards * length
        if way >= self._at:
            heappush(self._before, way)
        else:
            heappush(self._behind, -way)

    def take(self, most: int) -> list[Item]:
        taken: list[Item] = []
        while self._items and len(taken) < most:
            if not self._before:
                self._before, self._behind, self._upwards = self._behind, self._before, -self._upwards
            self._at = self._before[0]
            same = self._items[abs(self._at)]
            while same and len(taken) < most:
                taken.append(same.popleft())
            if not same:
                del self._items[abs(heappop(self._before))]
        self.count -= len(taken)
        return taken

    def turn_to_the_longest(self) -> None:
        """Take the others downwards, all of them."""
        self._before = sorted(-length for length in self._items)
        self._behind, self._upwards = [], -1


def by_length(placed: Iterable[tuple[Place, Feed]], ahead: Ahead) -> Iterator[list[tuple[Place, Feed]]]:
    """Yield feeds with their places by their lengths, some at a time, as many as ``ahead`` wants. The caller counts
    those that are pending, and waits for one while ``ahead.full()``. An empty list is yielded from time to time, so
    that the caller looks for answers.

    They come upwards and downwards in turns. What is read later joins those of its length unless these have gone. No
    more are read once ``ahead.ended`` is set. Those that are left then begin with the longest: so the devices end
    together.
    """
    if ahead.length is None:
        for one in placed:
            yield [one]
            if ahead.ended:
                return
        return
    these: _Sorted[tuple[Place, Feed]] = _Sorted()

    def wanted() -> list[tuple[Place, Feed]]:
        taken = these.take(ahead.wanted())
        ahead.kept = these.count
        return taken

    ahead.begin = soon = time.monotonic()
    for read, one in enumerate(placed):
        these.add(ahead.length(one[1]), one)
        ahead.kept = these.count
        now = time.monotonic()
        if read % _EACH and now < soon and ahead.may_keep():
            continue
        ahead.read(one[1])
        soon = now + _SOON
        if 0 < read < ahead.first and now < ahead.begin + _SOON and ahead.may_keep():
            yield []
            continue
        while True:
            block = wanted()
            yield block
            if ahead.ended or (not block and ahead.may_keep()):
                break
        if ahead.ended:
            break
    ahead.ended = True
    these.turn_to_the_longest()
    while these.count:
        yield wanted()


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
        self.grows = fixed is None
        """Whether runs are to be recorded."""
        self._rates: list[float] = []  # of this size, in rows a second
        self._most = 0.0  # of smaller sizes

    def record(self, rows: int, seconds: float) -> None:
        """Record a run. Runs of other sizes than the newest are ignored."""
        if not self.grows or rows != self.rows:
            return
        if self._background and 2 * seconds > self._LONGEST:
            self.grows = False
            return
        self._rates.append(rows / max(seconds, 1e-9))
        most = max(self._rates)
        if seconds < self._SHORT or most > self._GAIN * self._most:
            self.rows *= 4 if seconds < self._SHORT / 8 else 2
            self._rates, self._most = [], max(most, self._most)
        elif len(self._rates) == self._TRIES:
            self.grows = False
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
        row = np.asarray(self._rows[rows.start])
        return (row if row.size else row.astype(self._dtype))[None]


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
        progress: Called with how many rows are there, and with their number.
    """

    def __init__(
        self, count: int, names: Callable[[], Sequence[str]], progress: Callable[[int, int], object] | None = None
    ) -> None:
        self.outputs: list[Any] = []
        self._count, self._names = count, names
        self._progress, self._done = progress, 0

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
        self._done += len(rows)
        if self._progress:
            self._progress(self._done, self._count)


def _enlarged(part: Any, count: int) -> Any:
    """Make an array for one output of all runs. The caller refuses an output that is not an array."""
    return np.empty((count, *part.shape[1:]), part.dtype) if isinstance(part, np.ndarray) else part


def run_rows(run: Run, pieces: Iterator[tuple[range, Feed]], size: RunSize, to: JoinedRows, all_of_them: bool) -> None:
    """Run pieces one after another; rows of their own only up to the first that takes longer than handing it over."""
    for rows, feed in pieces:
        begin = time.perf_counter()
        answer = run(feed)
        seconds = time.perf_counter() - begin
        size.record(len(rows), seconds)
        to.add(rows, answer)
        if seconds >= _LONG and not all_of_them:
            return


def submit_rows(
    submit: Submit, pieces: Iterator[tuple[range, Feed]], size: RunSize, ahead: Ahead, to: JoinedRows
) -> None:
    """Run pieces with as many requests pending as ``ahead`` allows. Cancel those after a failure."""
    with closing(answered(submit, pieces, ahead)) as blocks:
        for all_rows, submitted, outcomes in blocks:
            timing = submitted.timing() if size.grows else None  # each is alone then
            del submitted  # with an error it would keep all that the error's traceback knows
            for rows, outputs in zip(all_rows, outcomes, strict=True):
                if isinstance(outputs, BaseException):
                    raise outputs
                if timing:
                    size.record(len(rows), timing.copied + timing.ran)
                to.add(rows, outputs)
