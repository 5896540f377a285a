"""The proof that padding changes no answer: requests of different lengths are run together, and without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ortmulti.create.sample_inputs import MISFITS, first_fit, growing_inputs
from ortmulti.errors import InvalidArgument
from ortmulti.optimized.comparison import same_bits
from ortmulti.options.session_options import RunOptions
from ortmulti.pool.answers import CANCELLATION, tolerance
from ortmulti.pool.batching_check import Model, check_pool
from ortmulti.pool.configuration import Batching
from ortmulti.pool.feeds import are_rows, join_rows, take_rows
from ortmulti.pool.padding import Padded, Padding
from ortmulti.pool.padding_requests import (
    ORDINARY,
    ROWS,
    Feed,
    Values,
    counting,
    is_mask,
    lengths_to_try,
    make_request,
    random_requests,
    resized,
)
from ortmulti.values import floats
from ortmulti.values.apart import apart, ordinary

__all__ = ["padded_outputs", "prove_padding"]

_MEND = (
    "Give pad the values that the model ignores, and its mask. A maximum ignores the lowest number of its type, a "
    "minimum the largest. Pad the other side if the model counts positions from one end; or load it without pad"
)
_SHORT = (1, 2, 3, 5)
_SURE = 0.002
"""Larger differences, up to `tolerance`, are rounding only if other values in the padded places give the same bits."""
_NOISE = 16
_FAINT = 0.1
"""Outputs below this share of the ordinary ones are compared as if they were that large: they are mostly rounding."""

_Unpadded: TypeAlias = dict[int, tuple[list[Feed], list[Any]]]
"""Requests of each length, and the answer to a run of them."""


def prove_padding(pool: Model, batching: Batching) -> Padded:
    """Find what is padded and cut, and compare random requests: docs/how-to/lengths.md says which.

    Raises:
        InvalidArgument: ``batching`` does not fit the model, or the answers differ.
        Error: As the runs.
    """
    padded = padded_outputs(pool, batching)
    found = check_pool(pool, batching, random_requests(padded), padded)
    if not found.independent:
        raise InvalidArgument(f"padded, {found}. {_MEND}")
    if problem := next(_Proof(pool, padded).problems(), None):
        raise InvalidArgument(f"padded, joined requests get other answers: {problem}. {_MEND}")
    return padded


def padded_outputs(pool: Model, batching: Batching) -> Padded:
    """Find the dimensions that have the length: of inputs in the declaration, of outputs by runs with three lengths.

    Raises:
        InvalidArgument: ``batching`` does not fit the model, the model takes no random inputs, or an output has a
            dimension that changes in another way.
        Error: As the runs.
    """
    padding = Padding.of(batching, pool.get_inputs())
    # The pool fills a request alone up with rows, but none with run options.
    run_options = RunOptions() if _rows(pool, padding) is None else None

    def run(feed: Feed) -> Feed:
        pool.run(None, feed, run_options)
        return feed

    try:
        feed = first_fit(counting(growing_inputs(pool.get_inputs()), padding), run)
    except MISFITS as error:
        raise InvalidArgument(
            "padding is proven with random inputs, and the model takes none: of length 16, 64 or 512, with token ids "
            f"below 100, 30, 4 or 2. Load it without pad. The first failed so: {error.public}"
        ) from error
    if not isinstance(batching.lengths, int) and batching.lengths:
        try:
            run(padding.resized(feed, batching.lengths[-1]))
        except MISFITS as error:
            raise InvalidArgument(
                f"lengths has {batching.lengths[-1]}, and the model fails with so much of {padding.dimension}: end "
                f"lengths where the model does. {error.public}"
            ) from error
    lengths = lengths_to_try(padding.length(feed))
    answers = [pool.run(None, resized(padding, feed, length), run_options) for length in lengths]
    axes: dict[str, list[int]] = {}
    for place, declared in enumerate(pool.get_outputs()):
        name = declared.name
        shapes = [getattr(answer[place], "shape", ()) for answer in answers]
        if len({len(shape) for shape in shapes}) != 1:
            raise InvalidArgument(f"output '{name}' has the shapes {shapes} for lengths {lengths}: it cannot be cut")
        axes[name] = []
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            if len(set(sizes)) == 1:
                continue
            if list(sizes) != lengths or axis == padding.batching.axis:
                raise InvalidArgument(
                    f"output '{name}' has {sizes[0]}, {sizes[1]} and {sizes[2]} elements along dimension {axis} for "
                    f"{lengths[0]}, {lengths[1]} and {lengths[2]} of {padding.dimension}: it cannot be cut to the "
                    "length of each request. Load it without pad"
                )
            axes[name].append(axis)
    return Padded(padding, axes, take_rows(feed, [0], batching.axis), run_options)


def _rows(pool: Model, padding: Padding) -> int | None:
    """Return how many rows each run has, if the model says it."""
    sizes = (one.shape[padding.batching.axis] for one in pool.get_inputs() if one.name in padding.axes)
    return next((size for size in sizes if isinstance(size, int)), None)


# --- Runs -------------------------------------------------------------------------------------------------------------


class _Proof:
    """Runs rows of all kinds without padding, and with it beside others."""

    def __init__(self, pool: Model, padded: Padded) -> None:
        self._pool = pool
        self._padded = padded
        self._padding = padded.padding
        self._axis = padded.padding.batching.axis
        self._outputs = pool.get_outputs()
        self._known = sorted(lengths_to_try(self._padding.length(padded.feed)))
        self._ordinary: list[_Ordinary] = []

    def problems(self) -> Iterator[str]:
        """Yield how an answer differs, if one does."""
        most = min(len(ROWS), _rows(self._pool, self._padding) or len(ROWS))
        for begin in range(0, len(ROWS), most):
            rows = ROWS[begin : begin + most]
            unpadded = self._unpadded(rows)
            if len(unpadded) < 2:  # the model does not take all values
                rows = tuple(one for one in rows if self._unpadded([one], self._known[:1]))
                unpadded = self._unpadded(rows) if rows else {}
            lengths = list(unpadded)
            if unpadded and not self._ordinary:
                self._ordinary = self._measure(*unpadded[lengths[-1]])
            for turn in range(len(lengths)):
                yield from self._joint(rows, unpadded, [lengths[(i + turn) % len(lengths)] for i in range(len(rows))])

    def _unpadded(self, rows: Sequence[Values], tried: Sequence[int] = ()) -> _Unpadded:
        """Return requests of three lengths that the model takes, and their answers without padding."""
        found: _Unpadded = {}
        short = [length for length in _SHORT if length < self._known[0]]
        for length in tried or (*short, *self._known):
            if len(found) == (2 if length < self._known[0] else 3):
                continue
            requests = [make_request(self._padded, values, length, ROWS.index(values)) for values in rows]
            try:
                found[length] = requests, self._run(requests)
            except MISFITS:
                continue
        return found

    def _measure(self, requests: list[Feed], together: list[Any]) -> list[_Ordinary]:
        """Measure the ordinary request, which is the first one: its values, and how they round in another run."""
        alone = self._run(requests[:1])
        return [
            _Ordinary.of(self._part(one, 0, 1), self._part(other, 0, len(requests)))
            for one, other in zip(alone, together, strict=True)
        ]

    def _joint(self, rows: Sequence[Values], unpadded: _Unpadded, lengths: Sequence[int]) -> Iterator[str]:
        requests = [unpadded[length][0][i] for i, length in enumerate(lengths)]
        to = max(unpadded)
        answers = self._run([self._padding.resized(one, to) for one in requests])
        poisoned: list[Any] = []
        for i, (values, length) in enumerate(zip(rows, lengths, strict=True)):
            for place, declared in enumerate(self._outputs):
                name, axes = declared.name, self._padded.axes[declared.name]
                own = self._part(unpadded[length][1][place], i, len(rows))
                found = self._part(answers[place], i, len(rows))
                if own is None or found is None:
                    continue  # `check_pool` refuses outputs that cannot be split
                found = self._padding.cut(found, axes, length)
                by, certain = _compare(own, found, values, self._ordinary[place], _floor(requests[i], self._padding))
                if by and not certain:
                    poisoned = poisoned or self._run([self._poisoned(one, to) for one in requests])
                    other = self._padding.cut(self._part(poisoned[place], i, len(rows)), axes, length)
                    by = "" if same_bits([found], [other]) else f"{by}, and changes with what is in the padded places"
                if by:
                    yield (
                        f"'{name}' {by}, for a request with {values.said} and the length {length} that is filled up to "
                        f"{to}"
                    )

    def _run(self, requests: Sequence[Feed]) -> list[Any]:
        answers = self._pool.run(None, join_rows(requests, self._axis), self._padded.run_options)
        return [floats.of_type(one, declared.type) for one, declared in zip(answers, self._outputs, strict=True)]

    def _part(self, answer: Any, row: int, rows: int) -> Any:
        return answer.take([row], self._axis) if are_rows(answer, self._axis, rows) else None

    def _poisoned(self, request: Feed, to: int) -> Feed:
        """Fill a request up with other values than those that pad, except its mask."""
        own = self._padding.length(request)
        filled = self._padding.resized(request, to)
        other = make_request(self._padded, ORDINARY, to, len(ROWS))
        for name, axes in self._padding.axes.items():
            if not is_mask(self._padding, name):
                real = self._padding.cut(np.arange(filled[name].size).reshape(filled[name].shape), axes, own)
                made = other[name].copy()
                made.ravel()[real.ravel()] = request[name].ravel()
                filled[name] = made
        return filled


# --- Comparison -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ordinary:
    """What an output of ordinary values is like.

    Attributes:
        largest: Its largest value, but for far larger ones.
        finite: Whether it has only finite numbers.
        noise: By which share of the largest value it differs in a run of another size.
    """

    largest: float = 0.0
    finite: bool = True
    noise: float = 0.0

    @classmethod
    def of(cls, one: Any, other: Any) -> _Ordinary:
        if one is None or other is None or one.shape != other.shape or not floats.is_floating(one.dtype):
            return cls()
        first, second = floats.as_float64(one), floats.as_float64(other)
        finite = np.isfinite(first) & np.isfinite(second)
        by = apart(first[finite], second[finite])
        assert by is not None
        return cls(ordinary(np.abs(first[finite])), bool(finite.all()), by.most / by.largest if by.largest else 0.0)


def _floor(request: Feed, padding: Padding) -> float:
    """Return the absolute difference that is rounding: sums that cancel out leave nothing else."""
    largest = (
        np.abs(floats.as_float64(array)).max(initial=0.0)
        for name, array in request.items()
        if floats.is_floating(array.dtype) and not is_mask(padding, name)
    )
    found = max(map(float, largest), default=0.0)
    return CANCELLATION * found if np.isfinite(found) else 0.0


def _compare(own: Any, found: Any, values: Values, ordinary: _Ordinary, floor: float) -> tuple[str, bool]:
    """Say how an answer differs from the one without padding; and whether that cannot be rounding."""
    if own.shape != found.shape:
        return f"has the shape {found.shape} and not {own.shape}", True
    if not floats.is_floating(own.dtype):
        share = float(np.mean(own != found)) if own.size and not values.ties else 0.0
        return (f"differs in {share:.0%} of its elements", True) if share > tolerance(own.dtype) else ("", True)
    if ordinary.finite and not np.isfinite(floats.as_float64(own)).all():
        return "", True  # values that the model is not made for
    by = apart(own, found)
    if by is None:
        return "is infinite or not a number elsewhere", True
    if by.most <= floor:
        return "", True
    share = by.most / max(by.largest, _FAINT * ordinary.largest)
    limit = tolerance(own.dtype)
    if share > limit:
        return f"differs by {share:.2g} of its largest value", True
    sure = max(_SURE, _NOISE * ordinary.noise, limit if limit > tolerance(np.dtype(np.float32)) else 0.0)
    return (f"differs by {share:.2g} of its largest value", False) if share > sure else ("", True)
