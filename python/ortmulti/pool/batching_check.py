"""Whether requests that a pool joins get the answers that they would get alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ortmulti.create.sample_inputs import first_fit, growing_inputs
from ortmulti.errors import InvalidArgument
from ortmulti.pool.answers import CANCELLATION, TOLERANCE, difference, within_rounding
from ortmulti.pool.configuration import Batching
from ortmulti.pool.padding import Padded
from ortmulti.values import floats

if TYPE_CHECKING:
    from ortmulti.options.session_options import RunOptions

__all__ = ["BatchingCheck", "Model", "OutputCheck", "check_pool"]

_OUTLIER = 100
"""By how much the second neighbour's numbers are larger, so that a scale that all rows share becomes another one."""


class Model(Protocol):
    """The part of a `Pool` that is needed here."""

    def get_inputs(self) -> list[Any]: ...
    def get_outputs(self) -> list[Any]: ...
    def run(self, output_names: Any = None, input_feed: Any = None, run_options: Any = None) -> list[Any]: ...


@dataclass(frozen=True)
class OutputCheck:
    """What one output of a request depends on.

    Differences are shares of the output's largest value. Of what is not floats they are 1.0, of ``size`` the share of
    elements that differ. 0.0 means the same bits.

    Attributes:
        neighbours: By how much it differs beside other requests in runs of the same size.
        size: By how much it differs from the answer to the request alone. Runs of another size may use other kernels,
            which round differently: 1e-6 is usual for float32, 1e-3 for float16. A few units in the last place of
            types with fewer bits count as 0.01 at most.
        repeats: By how much it differs when the same run is repeated; not 0.0 if kernels or random numbers do so.
    """

    neighbours: float
    size: float
    repeats: float

    @property
    def independent(self) -> bool:
        """Whether a joined request gets the answer that it gets alone, but for rounding."""
        return not self.problem

    @property
    def problem(self) -> str:
        """How the answers differ; empty: by rounding at most."""
        if self.repeats > TOLERANCE:
            return f"differs by {self.repeats:.2g} of its largest value when the same run is repeated"
        if self.neighbours > self.repeats:
            return f"differs by {self.neighbours:.2g} of its largest value beside other requests"
        if self.size > TOLERANCE:
            return f"differs by {self.size:.2g} of its largest value from the answer to the request alone"
        return ""


@dataclass(frozen=True)
class BatchingCheck:
    """The result of `ortmulti.check_batching`.

    Attributes:
        outputs: Each output's result, by name.
    """

    outputs: Mapping[str, OutputCheck]

    @property
    def independent(self) -> bool:
        """Whether that is so for all outputs."""
        return all(output.independent for output in self.outputs.values())

    def __str__(self) -> str:
        problems = [f"'{name}' {one.problem}" for name, one in self.outputs.items() if one.problem]
        if problems:
            return "joined requests get other answers: " + ", ".join(problems)
        most = max((one.size for one in self.outputs.values()), default=0.0)
        rounding = f"but for rounding, {most:.2g} of the largest value" if most else "bit for bit"
        return f"joined requests get the answers that they get alone, {rounding}"


def check_pool(
    pool: Model, batching: Batching, samples: Sequence[Mapping[str, Any]] | None = None, padded: Padded | None = None
) -> BatchingCheck:
    """Same as `check_batching`, for a pool that was loaded with ``batching``. No other requests may come meanwhile.

    Args:
        padded: With ``pad``, what `ortmulti.pool.padding_proof.padded_outputs` found; then ``samples`` are given.
    """
    axis = batching.axis
    requests = _random(pool, axis) if samples is None else _given(samples)
    lengths = [0, 0, 0]
    if padded:
        requests = [padded.padding.completed(one) for one in requests]
        lengths = [padded.padding.length(one) for one in requests]
    first, second, third = requests
    rows = _rows(first, axis)
    alone = pool.run(None, first, _alone(padded))
    # The request before others and behind them: a cumulative sum goes one way.
    joined = [(first, second), (first, second), (first, third), (second, first), (third, first)]
    found = []
    for pair in joined:
        filled = [padded.padding.resized(one, max(lengths)) if padded else one for one in pair]
        feed = _join(filled[0], filled[1], batching)
        begin = 0 if pair[0] is first else _rows(pair[0], axis)
        found.append((pool.run(None, feed, _alone(padded)), begin, _rows(feed, axis)))
    largest = (np.abs(floats.as_float64(array)).max(initial=0) for array in first.values() if _is_number(array))
    floor = CANCELLATION * float(max(largest, default=0))
    outputs = {}
    for place, declared in enumerate(pool.get_outputs()):
        name = declared.name
        own = _part(name, floats.of_type(alone[place], declared.type), axis, 0, rows, rows)
        before, again, before_other, behind, behind_other = (
            _cut(
                _part(name, floats.of_type(answers[place], declared.type), axis, begin, rows, of),
                name,
                lengths[0],
                padded,
            )
            for answers, begin, of in found
        )
        outputs[name] = OutputCheck(
            neighbours=max(difference(before_other, before), difference(behind_other, behind)),
            size=max(within_rounding(before, own, floor), within_rounding(behind, own, floor)),
            repeats=difference(again, before),
        )
    return BatchingCheck(outputs)


def _alone(padded: Padded | None) -> RunOptions | None:
    return padded.run_options if padded else None


def _cut(answer: Any, name: str, length: int, padded: Padded | None) -> Any:
    return padded.padding.cut(answer, padded.axes[name], length) if padded else answer


def _given(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    given = [{name: np.asarray(array) for name, array in sample.items()} for sample in samples]
    if not 2 <= len(given) <= 3:
        raise InvalidArgument(f"samples are two requests or three, not {len(given)}")
    return given if len(given) == 3 else [*given, _larger(given[1])]


def _random(pool: Model, axis: int) -> list[dict[str, Any]]:
    def cut(feed: Mapping[str, Any], row: int) -> dict[str, Any]:
        return {name: array.take([row], axis) if axis < array.ndim else array for name, array in feed.items()}

    def fits(feed: dict[str, Any]) -> dict[str, Any]:
        pool.run(cut(feed, 0))
        return feed

    feed = first_fit(growing_inputs(pool.get_inputs(), 3), fits)
    rows = _rows(feed, axis)
    if rows < 2:
        raise InvalidArgument(f"random inputs have {rows} rows along dimension {axis}: give samples= with yours")
    return [cut(feed, 0), cut(feed, 1), _larger(cut(feed, min(2, rows - 1)))]


def _larger(sample: Mapping[str, Any]) -> dict[str, Any]:
    with np.errstate(over="ignore", invalid="ignore"):  # float8 ends at 448
        return {
            name: array * array.dtype.type(_OUTLIER) if floats.is_floating(array.dtype) else array
            for name, array in sample.items()
        }


def _is_number(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iu" or floats.is_floating(array.dtype)


def _rows(feed: Mapping[str, Any], axis: int) -> int:
    found = {array.shape[axis] for array in feed.values() if axis < array.ndim}
    if len(found) != 1:
        raise InvalidArgument(
            f"the inputs of a request have one size along dimension {axis}, not {sorted(found) or 'none'}"
        )
    return int(found.pop())


def _join(first: Mapping[str, Any], second: Mapping[str, Any], batching: Batching) -> dict[str, Any]:
    axis = batching.axis
    rows = _rows(first, axis) + _rows(second, axis)
    if rows > batching.max_size:
        raise InvalidArgument(f"two samples have {rows} rows together, and max_size is {batching.max_size}")
    try:
        return {
            name: np.concatenate([array, second[name]], axis) if axis < array.ndim else array
            for name, array in first.items()
        }
    except (KeyError, ValueError) as error:
        raise InvalidArgument(f"the samples cannot be joined along dimension {axis}: {error}") from error


def _part(name: str, answer: Any, axis: int, begin: int, rows: int, of: int) -> Any:
    """So many rows of an answer to ``of`` rows."""
    shape = getattr(answer, "shape", ())
    if axis >= len(shape) or shape[axis] != of:
        raise InvalidArgument(
            f"the output '{name}' has the shape {tuple(shape)} for {of} rows along dimension {axis}: it cannot be "
            "split, so that the pool joins no requests"
        )
    return answer.take(range(begin, begin + rows), axis)
