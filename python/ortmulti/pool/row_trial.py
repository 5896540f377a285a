"""Runs of random inputs that show whether outputs have the rows of the inputs, each one's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from ortmulti.create.sample_inputs import MISFITS, first_fit, growing_inputs, sample_inputs
from ortmulti.errors import OutOfMemory
from ortmulti.pool.answers import CANCELLATION, OutputCheck, difference, larger, largest, within_rounding
from ortmulti.values import floats

__all__ = ["Trial", "try_rows"]

Feed: TypeAlias = Mapping[str, Any]
Run: TypeAlias = Callable[[Sequence[str], Feed], Sequence[Any]]

_MOST_ROWS = 32
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
        self._fixed, self._rows = 0, 0
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

        feed = first_fit(growing_inputs(declared, fixed or min(_FEW, most)), fits)
        self._fixed, self._rows = fixed, fixed or min(_FEW, most)
        begin = time.monotonic()
        fits(feed)  # the first run prepares much
        taken = time.monotonic() - begin
        if not fixed:
            row = sum(array.nbytes for array in feed.values()) / self._rows
            rows = min(most, _MOST_ROWS, _MOST_BYTES / max(row, 1), _SECONDS / 2 / _FULL_RUNS / max(taken, 1e-6))
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
        return {
            name: array.take(rows, self._axis) if self._axis < array.ndim else array for name, array in feed.items()
        }

    def compare(self) -> None:
        """Run several kinds of numbers, and compare what each row gets."""
        for kind, feed in self._kinds():
            if set(self.found.problems) >= set(self._names):
                return
            try:
                (self._compare_fixed if self._fixed else self._compare)(kind, feed)
            except (OutOfMemory, _Late):
                return
            except MISFITS:  # numbers that the model does not take
                continue

    def _kinds(self) -> Iterator[tuple[str, Feed]]:
        yield "", self._feed
        yield "positive", _changed(self._feed, np.abs)
        yield "negative", _changed(self._feed, lambda array: -np.abs(array))
        yield "large", larger(self._feed)

    def _compare(self, kind: str, feed: Feed) -> None:
        rows = self._rows
        alone = {row: self._answer(self._cut(feed, [row])) for row in {0, rows - 1}}
        if kind == "" and rows > 2:
            for size in range(2, min(rows, 4)):
                self._part(feed, range(size), alone)
        before = self._part(feed, range(rows), alone)
        if kind == "" and before is not None and self._values:
            again = self._answer(self._cut(feed, range(rows)))
            copies = self._part(feed, [0] * rows, alone)
            outliers = _beside(self._cut(feed, [0]), larger(feed), self._axis)
            beside = self._part(outliers, range(rows), {0: alone[0]})
            for other in (copies, beside):
                if other is not None:
                    self._neighbours(before, again, other)

    def _compare_fixed(self, kind: str, feed: Feed) -> None:
        rows = self._rows
        before = self._whole(self._cut(feed, range(rows)), rows)
        copies = self._whole(self._cut(feed, [0] * rows), rows)
        last = self._whole(self._cut(feed, [*range(1, rows), 0]), rows)
        self.compared = True
        if before is None or copies is None or last is None or not self._values:
            return
        again = self._answer(self._cut(feed, range(rows))) if kind == "" else before
        self._neighbours(before, again, copies)
        self._neighbours(before, again, copies, rows - 1)
        self._neighbours(before, again, last, rows - 1)

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
            for name in self._names:
                self.found.problems.setdefault(name, f"cannot be split: a run of {rows} rows fails: {_said(error)}")
            return None
        for name, value in answer.items():
            if self._axis >= value.ndim or value.shape[self._axis] != rows:
                self._note(name, f"has the shape {value.shape} for {rows} rows")
        return answer

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


def _beside(first: Feed, others: Feed, axis: int) -> Feed:
    """Put a row in the place of the first one of others."""
    return {
        name: np.concatenate([first[name], array.take(range(1, array.shape[axis]), axis)], axis)
        if axis < array.ndim
        else array
        for name, array in others.items()
    }
