"""The proof that a fused model computes what the model computes, and is faster: both run with the same inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, exp, fsum, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti import _core
from ortmulti.create.sample_inputs import MISFITS, sample_inputs
from ortmulti.errors import Error, NotOptimizable
from ortmulti.values import floats
from ortmulti.values.apart import apart

LENGTHS = (1, 7, 33)
"""Beside the longest."""
LONGEST = 1024
SHAPES = ((1, 32), (1, 128), (16, 64))
"""Rows and tokens of the runs that are timed."""
MIXED = (32, 256)
"""Another one, whose rows have different lengths, as texts of many clients have: this is the longest."""
FASTER = 0.97
"""A fused model is kept if its runs take at most this share of the time, in the mean over the shapes."""
SLOWER = 1.1
"""And no shape takes more than this."""
_ROWS = 6
_TOKENS = (100, 30, 4)
_SECONDS = 1.5
_TURNS = 5, 50
_RUNS = 3

_Feed = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class FusedRun:
    """Runs of one shape, before and after.

    Attributes:
        rows: Their rows.
        tokens: The length of each, or of the longest one.
        real: The tokens of all, without padding.
        before: Median seconds of the model's runs.
        after: The same of the fused model's.
        most: Which share of the time it takes at most, with a confidence of 97%.
    """

    rows: int
    tokens: int
    real: int
    before: float
    after: float
    most: float


def prove(model: _core.Session, fused: _core.Session, longest: int, tolerance: float, *, empty: bool) -> float:
    """Compare the outputs for random inputs of several lengths and sizes, with masks of all kinds.

    Args:
        model: A session of the model.
        fused: One of the fused model.
        longest: The longest input to try.
        tolerance: Which share of an output's largest value a difference may be.
        empty: Whether rows without any token are compared, too.

    Returns:
        The largest difference, as a share of the largest value.

    Raises:
        NotOptimizable: They differ by more, or the model takes no random inputs.
    """
    names = [output.name for output in model.outputs()]
    most, lengths = 0.0, set()
    for rows, length in ((1, 1), (_ROWS, 7), (1, 33), (_ROWS, 33), (2, longest)):
        random = np.random.default_rng([rows, length])
        for feed in _feeds(model, rows, length, partial(_masked, random=random, empty=empty)):
            try:
                expected = model.run(None, feed)
            except MISFITS:
                continue
            try:
                found = fused.run(None, feed)
            except Error as error:
                raise NotOptimizable(f"it fails with {rows} x {length} tokens: {error}") from error
            for name, one, other in zip(names, expected, found, strict=True):
                by = _difference(one, other)
                if not by <= tolerance:
                    raise NotOptimizable(
                        f"it computes another '{name}' for {rows} x {length} tokens: a difference of {by:.2g} of the "
                        f"largest value, and {tolerance:.2g} is rounding"
                    )
                most = max(most, by)
            lengths.add(length)
            break
    if len(lengths) < 2:
        raise NotOptimizable(
            "it cannot be compared with the model, which takes no random inputs of different lengths, with token ids "
            "below 100, 30 or 4"
        )
    return most


def race(model: _core.Session, fused: _core.Session, *, mixed: bool = False) -> tuple[FusedRun, ...]:
    """Time both models in turns.

    Args:
        model: A session of the model.
        fused: One of the fused model.
        mixed: Also time a run of many rows of different lengths, which takes long on a CPU.

    Raises:
        NotOptimizable: The fused one is not faster, or slower for a shape, or the times vary too much to be sure.
    """
    runs = []
    for rows, tokens in (*SHAPES, *[MIXED] * mixed):
        lengths = _lengths(rows, tokens) if (rows, tokens) == MIXED else np.full(rows, tokens)
        for feed in _feeds(model, rows, tokens, partial(_ended, lengths=lengths)):
            try:
                model.run(None, feed)
            except MISFITS:
                continue
            runs.append(_timed(model, fused, feed, rows, tokens, int(lengths.sum())))
            break
    slower = any(run.after > SLOWER * run.before for run in runs)
    if slower or share(runs) > FASTER or _mean([run.most for run in runs]) >= max(1.0, FASTER):
        times = ", ".join(
            f"{run.rows} x {run.tokens} tokens: {run.before * 1e3:.3g} ms before, {run.after * 1e3:.3g} ms after"
            for run in runs
        )
        sure = "" if share(runs) > FASTER else "everywhere " if slower else "surely "
        raise NotOptimizable(f"it is not {sure}faster on this device ({times or 'no run'})")
    return tuple(runs)


def share(runs: Sequence[FusedRun]) -> float:
    """Return which share of the time the fused model takes, in the mean over the shapes."""
    return _mean([run.after / run.before for run in runs])


def _mean(ratios: Sequence[float]) -> float:
    return exp(fsum(map(log, ratios)) / len(ratios)) if ratios else 1.0


def _timed(model: _core.Session, fused: _core.Session, feed: _Feed, rows: int, tokens: int, real: int) -> FusedRun:
    """Time both, which run in turns: a few runs, the first of which does not count.

    The threads of the one before still look for work then.
    """
    times: dict[_core.Session, list[float]] = {model: [], fused: []}
    end = time.perf_counter() + _SECONDS
    turns = 0
    while turns < _TURNS[0] or (turns < _TURNS[1] and time.perf_counter() < end):
        for session in (model, fused) if turns % 2 else (fused, model):
            session.run(None, feed)
            taken = []
            for _ in range(_RUNS):
                start = time.perf_counter()
                session.run(None, feed)
                taken.append(time.perf_counter() - start)
            times[session].append(statistics.median(taken))
        turns += 1
    # The upper end of an interval around the median: it is above in 3 of 100 cases at most.
    ratios = sorted(after / before for before, after in zip(times[model], times[fused], strict=True))
    most = ratios[min(turns - 1, ceil(turns / 2 + turns**0.5))]
    return FusedRun(rows, tokens, real, statistics.median(times[model]), statistics.median(times[fused]), most)


def _feeds(
    model: _core.Session, rows: int, length: int, masked: Callable[[NDArray[Any]], NDArray[Any]]
) -> Iterator[_Feed]:
    """Yield inputs, until the model takes one: with smaller token ids, and with types of tokens that are 0."""
    for tokens in _TOKENS:
        feed = sample_inputs(model.inputs(), rows, length, length, tokens=tokens)
        feed = {
            name: masked(array) if "mask" in name.lower() and array.shape[1:] == (length,) else array
            for name, array in feed.items()
        }
        types = {
            name: np.random.default_rng([rows, length]).integers(2, size=array.shape).astype(array.dtype)
            for name, array in feed.items()
            if ("token_type" in name.lower() or "segment" in name.lower()) and array.dtype.kind in "iu"
        }
        if types:
            yield feed | types
        yield feed


def _masked(mask: NDArray[Any], random: np.random.Generator, *, empty: bool) -> NDArray[Any]:
    """Mask rows in turns: nothing, the right side, the left side, some, and, where it is so, everything."""
    made = mask.copy()
    length = made.shape[1]
    for row in range(len(made)):
        kind, some = row % 5, int(random.integers(length)) if length > 1 else 0
        if kind == 1:
            made[row, length - some :] = 0
        elif kind == 2:
            made[row, :some] = 0
        elif kind == 3 and length > 1:
            made[row] = random.integers(2, size=length)
            made[row, some] = 1
        elif kind == 4 and empty:
            made[row] = 0
    return made


def _lengths(rows: int, longest: int) -> NDArray[Any]:
    """Return lengths as texts have them: log-normal, about a sixth of the longest in the mean."""
    lengths = np.random.default_rng(0).lognormal(np.log(longest / 8), 0.7, rows).astype(np.int64)
    return np.append(np.clip(lengths[1:], 4, longest), longest)


def _ended(mask: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    return (np.arange(mask.shape[1]) < lengths[:, None]).astype(mask.dtype)


def _difference(one: Any, other: Any) -> float:
    """Return the largest difference as a share of the largest value; of integers, the share of other elements."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return 0.0 if bool(one == other) else 1.0
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return 1.0
    if not floats.is_floating(one.dtype):
        return float(np.mean(one != other)) if one.size else 0.0
    by = apart(one, other)
    return 1.0 if by is None else by.most / by.largest if by.largest else 0.0
