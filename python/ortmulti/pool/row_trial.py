"""Runs of random inputs that show whether outputs have the rows of the inputs, each one's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from ortmulti.create.sample_inputs import MISFITS, first_fit, growing_inputs, has_named_integers, sample_inputs
from ortmulti.errors import OutOfMemory
from ortmulti.pool.answers import CANCELLATION, OutputCheck, difference, larger, largest, within_rounding
from ortmulti.pool.feeds import are_rows, join_rows, take_rows
from ortmulti.values import floats

__all__ = ["Trial", "try_rows"]

Feed: TypeAlias = Mapping[str, Any]
Run: TypeAlias = Callable[[Sequence[str], Feed], Sequence[Any]]

_MOST_ROWS = 32
_MOST_AT_ONCE = 256
"""Rows of the one run that is larger."""
_MOST_BYTES = 64 << 20
"""Of the inputs of a run."""
_SECONDS = 2.0
"""After which no further run begins, once one of several rows was compared."""
_FULL_RUNS = 6
_FEW = 3
_MOST_SAID = 300


@dataclass
class Trial:
    """What the runs of one model showed.

    Attributes:
        problems: Of outputs that have no rows of their own: why.
        checks: By how much the rows of an output differed.
        failed: Why no random inputs run; empty where they do.
    """

    problems: dict[str, str] = field(default_factory=dict)
    checks: dict[str, OutputCheck] = field(default_factory=dict)
    failed: str = ""
    unseen: set[str] = field(default_factory=set)
    """Outputs of which nothing was compared."""


def try_rows(
    run: Run,
    inputs: Sequence[Any],
    outputs: Mapping[str, str],
    axis: int,
    most: int | None,
    *,
    fixed: int = 0,
) -> Trial:
    """Run random rows alone and beside others, and compare.

    Args:
        run: Runs the model, for outputs by name.
        inputs: The declared inputs.
        outputs: The outputs' names and types.
        axis: The rows' dimension, of inputs and outputs.
        most: So many rows has a run at most. None: a few, and values are not compared.
        fixed: The number of rows that each run has; 0: any.
    """
    for one in inputs:
        if axis >= len(one.shape or ()):
            return Trial(failed=f"input '{one.name}' declares no dimension {axis}")
    trial = _Trial(run, list(inputs), outputs, axis, most is not None)
    try:
        trial.begin(fixed, most or _FEW)
    except (*MISFITS, OutOfMemory) as error:
        return Trial(failed=_said(error))
    trial.compare()
    if not trial.compared:
        trial.found.unseen |= set(outputs)
    return trial.found


class _Late(Exception):  # noqa: N818  (no error, but the way out)
    pass


class _Trial:
    def __init__(self, run: Run, inputs: list[Any], outputs: Mapping[str, str], axis: int, values: bool) -> None:
        self._run, self._inputs, self._axis = run, inputs, axis
        self._types, self._names = outputs, list(outputs)
        self._values = values
        self._fixed, self._rows, self._most = 0, 0, 0
        self._row_bytes, self._row_seconds = 0.0, 0.0
        self._feed: Feed = {}
        self._end = 0.0
        self.compared = False
        self.found = Trial()

    def begin(self, fixed: int, most: int) -> None:
        """Find inputs that the model takes, and how many rows are tried."""
        self._end = time.monotonic() + _SECONDS
        declared = [self._with_rows(one, fixed or min(_FEW, most)) for one in self._inputs]

        def fits(feed: Feed) -> Feed:
            self._run(self._names, feed if fixed else self._cut(feed, [0]))
            return feed

        def tries() -> Iterator[Feed]:
            yield from growing_inputs(declared, fixed or min(_FEW, most))
            for change in _SMALLER:
                for feed in growing_inputs(declared, fixed or min(_FEW, most)):
                    changed = change(feed)
                    if any(changed[name] is not array for name, array in feed.items()):
                        yield changed

        feed = first_fit(tries(), fits)
        self._fixed, self._rows, self._most = fixed, fixed or min(_FEW, most), most
        begin = time.monotonic()
        fits(feed)  # the first run prepares much
        taken = time.monotonic() - begin
        if not fixed:
            row = max(sum(array.nbytes for array in feed.values()) / self._rows, 1)
            self._row_bytes, self._row_seconds = row, max(taken, 1e-6)
            rows = min(most, _MOST_ROWS, _MOST_BYTES / row, _SECONDS / 2 / _FULL_RUNS / self._row_seconds)
            rows = max(self._rows, int(rows)) if self._values else self._rows
            if rows > self._rows:
                fitted = [
                    SimpleNamespace(name=one.name, type=one.type, shape=list(feed[one.name].shape)) for one in declared
                ]
                self._rows = rows
                ids = (array.max(initial=0) for array in feed.values() if array.dtype.kind in "iu")
                tokens = int(max(ids, default=0)) + 1  # more may be none
                feed = sample_inputs([self._with_rows(one, rows) for one in fitted], tokens=tokens)
        self._feed = feed

    def _with_rows(self, declared: Any, rows: int) -> Any:
        shape = list(declared.shape or ())
        if self._axis < len(shape):
            shape[self._axis] = rows
        return SimpleNamespace(name=declared.name, type=declared.type, shape=shape)

    def _cut(self, feed: Feed, rows: Sequence[int]) -> Feed:
        return take_rows(feed, rows, self._axis)

    def compare(self) -> None:
        """Run several kinds of numbers, and compare what each row gets."""
        compare = self._compare_fixed if self._fixed else self._compare
        try:
            feed = self._feed
            for feed in (self._feed, *(change(self._feed) for change in _SMALLER)):
                with suppress(*MISFITS):  # numbers that the model does not take, maybe of another row than the first
                    if compare("", feed):
                        break
            for kind, numbers in self._kinds(feed):
                if set(self.found.problems) >= set(self._names):
                    return
                with suppress(*MISFITS):
                    compare(kind, numbers)
            if not self._values:
                return
            if all((array == array.take([0], self._axis)).all() for array in feed.values()) and self._rows > 1:
                self.found.unseen |= set(self._names)  # equal rows show shapes alone
            if not self._fixed:
                with suppress(*MISFITS):
                    self._at_once(feed)
        except (OutOfMemory, _Late):
            return

    def _kinds(self, feed: Feed) -> Iterator[tuple[str, Feed]]:
        yield "positive", _changed(feed, np.abs)
        yield "negative", _changed(feed, lambda array: -np.abs(array))
        yield "large", larger(feed)

    def _compare(self, kind: str, feed: Feed) -> bool:
        """Compare rows alone and together; False: not all of these are rows that the model takes."""
        rows = self._rows
        alone = {row: self._answer(self._cut(feed, [row])) for row in {0, rows - 1}}
        if kind == "" and rows > 2:
            for size in range(2, min(rows, 4)):
                self._part(feed, range(size), alone)
        before = self._part(feed, range(rows), alone)
        if kind == "" and before is not None and self._values:
            again = self._answer(self._cut(feed, range(rows)))
            copies = self._part(feed, [0] * rows, alone)
            outliers = join_rows([self._cut(feed, [0]), self._cut(larger(feed), range(1, rows))], self._axis)
            beside = self._part(outliers, range(rows), {0: alone[0]})
            behind = self._part(outliers, [*range(1, rows), 0], {0: alone[0]})
            others = ((copies, 0), (beside, 0), (behind, rows - 1), *self._beside_nan(feed))
            for other, place in others:
                if other is not None:
                    self._neighbours(before, again, other, place)
        return before is not None or set(self.found.problems) >= set(self._names)

    def _compare_fixed(self, kind: str, feed: Feed) -> bool:
        rows = self._rows
        before = self._answer(self._cut(feed, range(rows)))
        self._shapes(before, rows)
        copies = self._whole(self._cut(feed, [0] * rows), rows)
        last = self._whole(self._cut(feed, [*range(1, rows), 0]), rows)
        self.compared = True
        if copies is not None and last is not None and self._values:
            again = self._answer(self._cut(feed, range(rows))) if kind == "" else before
            self._neighbours(before, again, copies)
            self._neighbours(before, again, copies, rows - 1)
            self._neighbours(before, again, last, rows - 1)
            for beside, place in self._beside_nan(feed) if kind == "" else ():
                self._neighbours(before, again, beside, place)
        return True

    def _beside_nan(self, feed: Feed) -> Iterator[tuple[dict[str, Any], int]]:
        """Run rows with one that is not a number behind row 0, and before it. Yield answers and the place of row 0;
        none where that fails or shows nothing.
        """
        nan = _changed(feed, lambda array: np.full_like(array, np.nan))
        rows = self._rows
        if rows < 2 or not any(floats.is_floating(array.dtype) for array in nan.values()):
            return
        both = join_rows([feed, nan], self._axis)
        for place, pair in enumerate(([0, rows + 1], [rows + 1, 0])):
            with suppress(*MISFITS):
                answer = self._answer(self._cut(both, [*pair, *range(2, rows)]))
                yield {name: value for name, value in answer.items() if are_rows(value, self._axis, rows)}, place

    def _at_once(self, feed: Feed) -> None:
        """Run as many rows as a pool may join."""
        left = self._end - time.monotonic()
        rows = int(min(self._most, _MOST_AT_ONCE, _MOST_BYTES / self._row_bytes, left / self._row_seconds))
        if rows > self._rows and self.compared:
            self._part(feed, [row % self._rows for row in range(rows)], {0: self._answer(self._cut(feed, [0]))})

    def _answer(self, feed: Feed) -> dict[str, Any]:
        if self.compared and time.monotonic() > self._end:
            raise _Late
        names = [name for name in self._names if name not in self.found.problems]
        values = dict(zip(names, self._run(names, feed), strict=True)) if names else {}
        self.found.unseen |= {name for name, value in values.items() if not isinstance(value, np.ndarray)}
        return {
            name: floats.of_type(value, self._types[name])
            for name, value in values.items()
            if name not in self.found.unseen
        }

    def _whole(self, feed: Feed, rows: int) -> dict[str, Any] | None:
        """Run rows together; None: that fails."""
        try:
            answer = self._answer(feed)
        except MISFITS as error:
            if self._fixed or self._all_alone(feed, rows):
                for name in self._names:
                    self._note(name, f"cannot be split: a run of {rows} rows fails: {_said(error)}")
            return None
        self._shapes(answer, rows)
        return answer

    def _all_alone(self, feed: Feed, rows: int) -> bool:
        """Whether each row runs alone: else it says nothing that they fail together."""
        try:
            for row in range(rows):
                self._answer(self._cut(feed, [row]))
        except MISFITS:
            return False
        return True

    def _shapes(self, answer: Mapping[str, Any], rows: int) -> None:
        """Note outputs that have not as many rows as the inputs."""
        for name, value in answer.items():
            if not are_rows(value, self._axis, rows):
                self._note(name, f"has the shape {value.shape} for {rows} rows")

    def _part(self, feed: Feed, rows: Sequence[int], alone: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Run rows together, and compare them with each alone. None: that fails."""
        answer = self._whole(self._cut(feed, rows), len(rows))
        if answer is None:
            return None
        floor = CANCELLATION * largest(feed)
        for place, row in enumerate(rows):
            for name, own in alone.get(row, {}).items():
                if name in answer and name not in self.found.problems:
                    self._row(name, answer[name], place, len(rows), own, floor)
        self.compared = True
        return answer

    def _row(self, name: str, answer: Any, place: int, rows: int, own: Any, floor: float) -> None:
        part = answer.take([place], self._axis)
        if part.shape != own.shape:
            self._note(name, f"has the shape {answer.shape} for {rows} rows, and {own.shape} for one")
        elif self._values:
            self._differs(name, size=within_rounding(part, own, floor))

    def _neighbours(self, before: Any, again: Any, other: Any, place: int = 0) -> None:
        """Compare row 0 in a run with the same row, at a place of another one of this size."""
        for name in self._names:
            if name in self.found.problems or not all(name in answer for answer in (before, again, other)):
                continue
            row, same = before[name].take([0], self._axis), other[name].take([place], self._axis)
            repeats = difference(before[name], again[name])
            if row.shape == same.shape:
                self._differs(name, neighbours=difference(row, same), repeats=repeats)
            else:
                self._note(name, f"has rows of the shapes {row.shape} and {same.shape}")

    def _note(self, name: str, problem: str) -> None:
        self.found.problems.setdefault(name, problem)

    def _differs(self, name: str, **found: float) -> None:
        had = self.found.checks.get(name, OutputCheck(0.0, 0.0, 0.0))
        values = {each: max(getattr(had, each), found.get(each, 0.0)) for each in ("neighbours", "size", "repeats")}
        self.found.checks[name] = OutputCheck(**values)


def _said(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:_MOST_SAID] + "..." * (len(lines[0]) > _MOST_SAID)


def _changed(feed: Feed, change: Callable[[Any], Any]) -> Feed:
    return {name: change(array) if floats.is_floating(array.dtype) else array for name, array in feed.items()}


def _kept(name: str) -> bool:
    return "mask" in name.lower() or has_named_integers(name)


def _counting(feed: Feed) -> Feed:
    """Make small whole numbers of a request's, which may be ids of a vocabulary."""
    return {
        name: array
        if _kept(name)
        else np.abs(np.rint(array))
        if floats.is_floating(array.dtype)
        else array % array.dtype.type(2)
        if array.dtype.kind in "iu"
        else array
        for name, array in feed.items()
    }


def _zeros(feed: Feed) -> Feed:
    return {
        name: np.zeros_like(array)
        if not _kept(name) and (array.dtype.kind in "iu" or floats.is_floating(array.dtype))
        else array
        for name, array in feed.items()
    }


def _zero_ids(feed: Feed) -> Feed:
    return {name: _zeros({name: array})[name] if array.dtype.kind in "iu" else array for name, array in feed.items()}


_SMALLER: Sequence[Callable[[Feed], Feed]] = (_zero_ids, _counting, _zeros)
"""For models that take no larger numbers, such as ids beyond their vocabulary."""
