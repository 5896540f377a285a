"""Whether requests that a pool joins get the answers that they would get alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ortmulti.errors import InvalidArgument
from ortmulti.pool.answers import CANCELLATION, OutputCheck, difference, larger, largest, within_rounding
from ortmulti.pool.configuration import Batching
from ortmulti.pool.feeds import are_rows, join_rows
from ortmulti.pool.padding import Padded
from ortmulti.values import floats

if TYPE_CHECKING:
    from collections.abc import Container

    from ortmulti.options.session_options import RunOptions
    from ortmulti.pool.rows import RowVerdict

__all__ = ["BatchingCheck", "Model", "check_pool"]


class Model(Protocol):
    """The part of a `Pool` that is needed here."""

    def get_inputs(self) -> list[Any]: ...
    def get_outputs(self) -> list[Any]: ...
    def run(self, output_names: Any = None, input_feed: Any = None, run_options: Any = None) -> list[Any]: ...


@dataclass(frozen=True)
class BatchingCheck:
    """The result of `ortmulti.check_batching`.

    Attributes:
        outputs: By how much each output that was run differed, by name.
        rows: What is known of the rows of each output. Requests for outputs without rows run alone.
    """

    outputs: Mapping[str, OutputCheck]
    rows: RowVerdict | None = None

    @property
    def independent(self) -> bool:
        """Whether all outputs have rows, each with the answer that it gets alone."""
        return not self._problems()

    def _problems(self) -> dict[str, str]:
        random = self.rows is not None and bool(self.rows.random)
        found = {
            name: f"'{name}' {one.problem}"
            for name, one in self.outputs.items()
            if one.problem and not (random and one.repeats)
        }
        for name, one in self.rows.outputs.items() if self.rows else ():
            if one.verdict == "none":
                differs = f"; it {self.outputs[name].problem}" if name in found else ""
                found[name] = f"'{name}' {one.reason}{differs}"
        return found

    def __str__(self) -> str:
        if problems := self._problems():
            known = self.rows.outputs if self.rows else {}
            differ = any(name not in known or known[name].depends or name in self.outputs for name in problems)
            found = "joined requests get other answers" if differ else "requests for some outputs run alone"
            return f"{found}: {', '.join(problems.values())}"
        if self.rows and (unknown := self.rows.reasons("unknown")):
            return "it is not known whether requests can be joined: " + "; ".join(unknown.values())
        if self.rows and self.rows.random:
            return f"joined requests get their own answers, with random numbers of {', '.join(self.rows.random)}"
        most = max((one.size for one in self.outputs.values()), default=0.0)
        rounding = f"but for rounding, {most:.2g} of the largest value" if most else "bit for bit"
        return f"joined requests get the answers that they get alone, {rounding}"


def check_pool(
    pool: Model,
    batching: Batching,
    samples: Sequence[Mapping[str, Any]],
    padded: Padded | None = None,
    without_rows: Container[str] = (),
) -> BatchingCheck:
    """Compare the answers to requests alone and joined. No other requests may come to the pool meanwhile.

    Args:
        pool: Was loaded with ``batching``.
        batching: How requests are joined.
        samples: As for `check_batching`.
        padded: With ``pad``, what `ortmulti.pool.padding_proof.padded_outputs` found.
        without_rows: Outputs that are left out where they cannot be split.
    """
    axis = batching.axis
    requests = _given(samples)
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
    floor = CANCELLATION * largest(first)
    outputs = {}
    for place, declared in enumerate(pool.get_outputs()):
        name = declared.name
        runs = [(alone, rows), *((answers, of) for answers, _, of in found)]
        if name in without_rows and not all(are_rows(answers[place], axis, of) for answers, of in runs):
            continue
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
    return given if len(given) == 3 else [*given, larger(given[1])]


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
        return join_rows([first, second], axis)
    except (KeyError, ValueError) as error:
        raise InvalidArgument(f"the samples cannot be joined along dimension {axis}: {error}") from error


def _part(name: str, answer: Any, axis: int, begin: int, rows: int, of: int) -> Any:
    """So many rows of an answer to ``of`` rows."""
    if not are_rows(answer, axis, of):
        shape = getattr(answer, "shape", ())
        raise InvalidArgument(
            f"the output '{name}' has the shape {tuple(shape)} for {of} rows along dimension {axis}: it cannot be split"
        )
    return answer.take(range(begin, begin + rows), axis)
