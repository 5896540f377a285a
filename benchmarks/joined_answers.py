"""What the benchmarks of joined requests share: values that reveal rows that depend on each other; the comparison."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortmulti.create.sample_inputs import TOKENS, sample_inputs

Feed = dict[str, NDArray[Any]]
Answer = list[Any]

KINDS = ("normal", "positive", "negative", "large", "small", "equal", "zero", "masked")
"""How the values of a request are changed: conditions in a model often open for some of these only."""

JOINT_RUNS_FAIL = "joint runs fail"
KNOWN = {"sr": 16000}
"""Values of inputs for which a model takes few."""
SMALLEST = 1e-4
"""The largest value of an output counts at least as this: where it should be 0, rounding is all that there is."""


class Difference(NamedTuple):
    """How far a joined answer is from the same request's answer alone."""

    kind: str  # "", "rounding", "tie" (8-bit integers one apart), "shape" or "value"
    size: float  # of floats, as a part of the output's largest value

    @property
    def is_wrong(self) -> bool:
        return self.kind in ("shape", "value")


def make_feed(
    declared: Sequence[Any], shapes: Mapping[str, tuple[int, ...]], seed: int, kind: str, tokens: int = TOKENS
) -> Feed:
    """Make random inputs of these shapes: `sample_inputs`, with values changed as `kind` says."""
    fixed = [SimpleNamespace(name=one.name, type=one.type, shape=list(shapes[one.name])) for one in declared]
    feed = sample_inputs(fixed, seed=seed, tokens=tokens)
    common = sample_inputs(
        [one for one in fixed if not one.shape], tokens=tokens
    )  # a scalar is the same in all requests
    changed = {name: _changed(name, value, seed, kind) for name, value in feed.items()}
    known = {name: np.full_like(value, KNOWN[name]) for name, value in feed.items() if name in KNOWN}
    return {**changed, **common, **known}


def _changed(name: str, value: NDArray[Any], seed: int, kind: str) -> NDArray[Any]:
    if kind == "masked" and "mask" in name.lower() and value.ndim:
        real = np.arange(value.shape[-1]) < 1 + seed % max(1, value.shape[-1])
        return np.asarray(value * real).astype(value.dtype)
    if value.dtype.kind != "f":
        return value
    changed = {
        "positive": np.abs(value),
        "negative": -np.abs(value),
        "large": value * 100,
        "small": value / 100,
        "equal": np.full_like(value, value.flat[0] if value.size else 0),
        "zero": np.zeros_like(value),
    }.get(kind, value)
    return np.asarray(changed).astype(value.dtype)


def usual_sizes(answers: Sequence[Answer]) -> list[float]:
    """Return how large each output's largest value usually is: the median over requests."""
    return [float(np.median([_size(output) for output in outputs])) for outputs in zip(*answers, strict=True)]


def _size(output: Any) -> float:
    if not isinstance(output, np.ndarray) or output.dtype.kind != "f":
        return SMALLEST
    finite = np.abs(output[np.isfinite(output)].astype(np.float64))
    return max(float(finite.max()) if finite.size else 0.0, SMALLEST)


def compare(alone: Answer, joined: Answer, sizes: Sequence[float] = (), tolerance: float = 1e-3) -> Difference:
    """Compare a joined answer with the one alone, output by output, and return the worst difference.

    Args:
        sizes: Of `usual_sizes`. A difference counts beside the larger one of these and of this answer's values.
        tolerance: The part of it up to which a difference is rounding.
    """
    worst = Difference("", 0.0)
    for ours, theirs, size in itertools.zip_longest(alone, joined, sizes, fillvalue=SMALLEST):
        found = _compare(ours, theirs, size, tolerance)
        if found.is_wrong:
            return found
        worst = max(worst, found, key=lambda difference: (difference.kind != "", difference.size))
    return worst


def _compare(alone: Any, joined: Any, usual: float, tolerance: float) -> Difference:
    if not isinstance(alone, np.ndarray):  # sequences and maps, such as a classifier's probabilities
        return _compare_others(alone, joined, tolerance)
    if alone.shape != joined.shape or alone.dtype != joined.dtype:
        return Difference("shape", 0.0)
    if alone.dtype.kind != "f":
        if np.array_equal(alone, joined):
            return Difference("", 0.0)
        if alone.dtype.itemsize == 1 and alone.dtype.kind in "iu":
            steps = int(np.abs(alone.astype(np.int16) - joined.astype(np.int16)).max())
            return Difference("tie" if steps == 1 else "value", steps / 255)
        return Difference("value", 1.0)
    if np.array_equal(alone, joined, equal_nan=True):
        return Difference("", 0.0)
    here, there = alone.astype(np.float64), joined.astype(np.float64)
    finite = np.isfinite(here)
    if not np.array_equal(finite, np.isfinite(there)) or not np.array_equal(
        here[~finite], there[~finite], equal_nan=True
    ):
        return Difference("value", float("inf"))
    if not finite.any():
        return Difference("", 0.0)
    apart = float(np.abs(here[finite] - there[finite]).max())
    size = apart / max(usual, _size(alone), _size(joined))
    limit = max(tolerance, 20 * float(np.finfo(alone.dtype).eps))
    return Difference("rounding" if size <= limit else "value", size)


def _compare_others(alone: Any, joined: Any, tolerance: float) -> Difference:
    if isinstance(alone, list) and isinstance(joined, list):
        if len(alone) != len(joined):
            return Difference("shape", 0.0)
        return compare(alone, joined, (), tolerance)
    if isinstance(alone, dict) and isinstance(joined, dict):
        if alone.keys() != joined.keys():
            return Difference("value", 1.0)
        return compare([alone[key] for key in alone], [joined[key] for key in alone], (), tolerance)
    if isinstance(alone, float) and isinstance(joined, float):
        return _compare(np.asarray([alone], np.float32), np.asarray([joined], np.float32), SMALLEST, tolerance)
    return Difference("" if type(alone) is type(joined) and alone == joined else "value", 0.0)


def rows_of(feed: Feed) -> int:
    """How many rows a request has: the size of dimension 0."""
    return max((len(value) for value in feed.values() if value.ndim), default=1)


def join_by_hand(feeds: Sequence[Feed]) -> Feed:
    """Concatenate the inputs of requests along dimension 0; scalars are common."""
    return {
        name: np.concatenate([feed[name] for feed in feeds]) if value.ndim else value
        for name, value in feeds[0].items()
    }


def split_by_hand(answer: Answer, rows: Sequence[int]) -> list[Answer] | None:
    """Cut each output of a joint run into the requests' rows; None where an output has another number of rows."""
    total = sum(rows)
    if not all(isinstance(output, np.ndarray) and output.ndim and len(output) == total for output in answer):
        return None
    ends = np.cumsum(rows)[:-1]
    return [list(part) for part in zip(*(np.split(output, ends) for output in answer), strict=True)]


def groups(numbers: random.Random, count: int, largest: int) -> list[int]:
    """Choose 2 to `largest` of so many requests, each any number of times."""
    return numbers.choices(range(count), k=numbers.randint(2, largest))


class Truth(NamedTuple):
    """Whether requests may be joined, by onnxruntime and NumPy alone."""

    why_not: str  # empty: they may
    largest: float  # difference that was seen
    detail: str = ""


def truth_by_hand(
    run: Callable[[Feed], Answer],
    feeds: Sequence[Feed],
    answers: Sequence[Answer],
    drawn: Iterable[Sequence[int]],
) -> Truth:
    """Join and split groups of requests by hand, and compare them with their answers alone.

    Args:
        run: Runs the model.
        drawn: The groups, places of requests.
    """
    sizes, largest = usual_sizes(answers), 0.0
    for chosen in drawn:
        try:
            joint = run(join_by_hand([feeds[index] for index in chosen]))
        except Exception as error:
            return Truth(JOINT_RUNS_FAIL, largest, str(error)[:200])
        parts = split_by_hand(joint, [rows_of(feeds[index]) for index in chosen])
        if parts is None:
            return Truth("outputs are not rows", largest, str([list(np.shape(output)) for output in joint]))
        found = [compare(answers[index], part, sizes) for index, part in zip(chosen, parts, strict=True)]
        largest = max([largest, *(one.size for one in found)])
        if any(one.is_wrong for one in found):
            return Truth("rows depend on each other", largest)
    return Truth("", largest)


def notice(stats: Any) -> str:
    """What a pool's statistics say against joining; older releases count no differences that an audit found."""
    audit = getattr(stats, "audit_differences", 0)
    return stats.why_unbatched or (f"audit_differences {audit}" if audit else "")
