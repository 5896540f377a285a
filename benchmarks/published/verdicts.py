"""Whether a report's claims hold for what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ortmulti.bench.measure import results, rounds
from ortmulti.bench.measure.rounds import Interval
from ortmulti.bench.reports.tables import number, pipes

Outcome: TypeAlias = Literal["holds", "does not hold", "undecided", "not measured"]
Cell: TypeAlias = Interval | float | str | None
Measurements: TypeAlias = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: the report's short name and the claim, in our words.
        outcome: "undecided" where the measurements' interval reaches over the bound, or there was one round.
        because: the figures with the bound, or why there are none.
    """

    claim: str
    outcome: Outcome
    because: str

    @property
    def line(self) -> str:
        """The verdict in one line."""
        return f"{self.outcome}: {self.claim}: {self.because}"


def half_of(published: float) -> float:
    """Return the least that counts as a published gain ("2.0x") showing here as well: half of it (1.5x)."""
    return 1 + (published - 1) / 2


def judge(
    claim: str,
    what: str,
    values: Iterable[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    missing: str = "it failed",
) -> Verdict:
    """Return the verdict on a claim that a figure is at least, or at most, so much.

    Args:
        claim: see `Verdict`.
        what: the figure's name.
        values: the figure, once for each round.
        at_least, at_most: one of the two: the bound.
        missing: why there are no values, if there are none.
    """
    assert (at_least is None) != (at_most is None), "one bound"
    interval = Interval.of(values)
    if interval is None:
        return Verdict(claim, "not measured", missing)
    if at_least is not None:
        holds, fails, bound = interval.low >= at_least, interval.high < at_least, f"at least {at_least:.3g}"
    else:
        assert at_most is not None
        holds, fails, bound = interval.high <= at_most, interval.low > at_most, f"at most {at_most:.3g}"
    in_one_round = " in one round" if interval.confidence == 0 else ""
    because = f"{what} {text(interval)}{in_one_round}, claimed {bound}"
    return Verdict(claim, outcome_of(interval, holds, fails), because)


def outcome_of(interval: Interval, holds: bool, fails: bool) -> Outcome:
    """Return the outcome where the whole interval lies on the claim's side, or on the other; one round decides
    nothing.
    """
    if interval.confidence == 0:
        return "undecided"
    return "holds" if holds else "does not hold" if fails else "undecided"


def ratios(measurements: Measurements, numerator: str, denominator: str, key: str) -> list[float]:
    """Return one case's figure over another's, within each round in which both gave one."""
    by_round: dict[int, dict[str, Mapping[str, Any]]] = {}
    for one in measurements:
        if "error" not in one:
            by_round.setdefault(one["round"], {})[one["case"]] = one
    return rounds.ratios(by_round.values(), numerator, denominator, lambda one: one.get(key))


def figures(measurements: Measurements, case: str, key: str, scale: float = 1.0) -> list[float]:
    """Return a case's figure in each round that gave one, times `scale`."""
    return [
        scale * one[key]
        for one in measurements
        if one["case"] == case and "error" not in one and one.get(key) is not None
    ]


def show(
    document: Mapping[str, Any], shown: str, verdicts: Sequence[Verdict], missed: Sequence[str], json: Path | None
) -> int:
    """Print a result of another command with the verdicts and what is not as it should be, and write it.

    Args:
        document: the result.
        shown: the same as Markdown.
        verdicts: on the claims.
        missed: what is not as it should be, a text each.
        json: where to write the result, with the verdicts; None: nowhere.

    Returns:
        The exit status: 1 if something is not as it should be.
    """
    print(shown, *(f"- {verdict.line}" for verdict in verdicts), sep="\n")
    if json:
        results.save({**document, "verdicts": [vars(verdict) for verdict in verdicts]}, json)
    for one in missed:
        print(f"missed: {one}")
    return int(bool(missed))


def text(cell: Cell) -> str:
    """Return a cell's text; an interval is the median, with the ends where there is more than one value."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if not isinstance(cell, Interval):
        return number(cell)
    median, low, high = (number(value) for value in (cell.median, cell.low, cell.high))
    return median if low == high else f"{median} ({low} to {high})"


def table(rows: Mapping[str, Mapping[str, Cell]]) -> str:
    """Return the measured lines as Markdown, without columns that are empty."""
    shown = {line: {column: text(cell) for column, cell in cells.items()} for line, cells in rows.items()}
    columns = [*dict.fromkeys(column for cells in shown.values() for column, cell in cells.items() if cell)]
    body = [[line, *(cells.get(column, "") for column in columns)] for line, cells in shown.items()]
    return pipes([["", *columns], ["---", *["---:"] * len(columns)], *body])
