"""Published tables beside what was measured, and whether a report's claims hold for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.published.claims import Claim
from benchmarks.published.reports import Table
from ortmulti.bench.create.tables import number, pipes
from ortmulti.bench.measure import rounds
from ortmulti.bench.measure.rounds import Interval

Outcome = Literal["holds", "does not hold", "undecided", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        claim: the claim.
        release: of ONNX Runtime, and what else tells cases apart.
        outcome: "undecided" where the measurements' interval reaches over the bound, or there was one round.
        because: the figures, or why there are none.
    """

    claim: Claim
    release: str
    outcome: Outcome
    because: str

    @property
    def line(self) -> str:
        """The verdict in one line."""
        what = "Because" if self.outcome == "not measured" else "Measured"
        return f"{self.release}: {self.outcome}: {self.claim.text} {what}: {self.because}."

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON can carry it."""
        return {
            "id": self.claim.id,
            "source": self.claim.source.title,
            "claim": self.claim.text,
            "rule": self.claim.rule,
            "release": self.release,
            "outcome": self.outcome,
            "because": self.because,
        }


def judge(
    claim: Claim,
    release: str,
    what: str,
    values: Iterable[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    missing: str = "nothing was measured",
) -> Verdict:
    """The verdict on a claim that a figure is at least, or at most, so much.

    Args:
        claim: the claim.
        release: see `Verdict`.
        what: the figure's name.
        values: the figure, once for each round.
        at_least, at_most: one of the two: the bound.
        missing: why there are no values, if there are none.
    """
    interval = Interval.of(values)
    if interval is None:
        return Verdict(claim, release, "not measured", missing)
    return Verdict(claim, release, outcome_of(interval, *_sides(interval, at_least, at_most)), _text(what, interval))


def outcome_of(interval: Interval, holds: bool, fails: bool) -> Outcome:
    """The outcome where the whole interval lies on the claim's side, or on the other; one round decides nothing."""
    if interval.confidence == 0:
        return "undecided"
    return "holds" if holds else "does not hold" if fails else "undecided"


def _text(what: str, interval: Interval) -> str:
    return f"{what} {interval_text(interval)}{' in one round' if interval.confidence == 0 else ''}"


def _sides(interval: Interval, at_least: float | None, at_most: float | None) -> tuple[bool, bool]:
    """Whether the whole interval lies on the claim's side of the bound, and whether on the other."""
    assert (at_least is None) != (at_most is None), "one bound"
    if at_least is not None:
        return interval.low >= at_least, interval.high < at_least
    assert at_most is not None
    return interval.high <= at_most, interval.low > at_most


def interval_text(interval: Interval) -> str:
    """The median, and its interval where there is more than one value."""
    median, low, high = (number(value) for value in (interval.median, interval.low, interval.high))
    return median if low == high else f"{median} ({low} to {high})"


def ratios(
    measurements: Iterable[Mapping[str, Any]], release: str, numerator: str, denominator: str, key: str
) -> list[float]:
    """One case's figure over another's, within each round in which both gave one.

    Args:
        measurements: with "release", "case", "round" and the figures; those with "error" are left out.
        release: whose.
        numerator, denominator: the cases.
        key: the figure.
    """
    by_round: dict[int, dict[str, Mapping[str, Any]]] = {}
    for one in measurements:
        if one["release"] == release and "error" not in one:
            by_round.setdefault(one["round"], {})[one["case"]] = one
    return rounds.ratios(by_round.values(), numerator, denominator, lambda one: one.get(key))


def figures(measurements: Iterable[Mapping[str, Any]], release: str, case: str, key: str) -> list[float]:
    """A case's figure in each round that gave one."""
    return [
        one[key]
        for one in measurements
        if (one["release"], one["case"]) == (release, case) and "error" not in one and one.get(key) is not None
    ]


Cell = Interval | float | str | None
Measured = Mapping[str, Mapping[str, Cell]]
"""By the line's name, by the column."""


def cell(value: Cell) -> str:
    """A cell's text; "" where there is none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return interval_text(value) if isinstance(value, Interval) else number(value)


def side_by_side(table: Table, measured: Mapping[str, Measured], columns: Sequence[str] = ()) -> str:
    """The table as Markdown: each of its columns, published and with each release; what was measured besides follows.

    Args:
        table: the published table.
        measured: by release.
        columns: measured columns that were not published.
    """
    found = [line for rows in measured.values() for line, cells in rows.items() if any(map(cell, cells.values()))]
    lines = list(dict.fromkeys([*table.rows, *found]))
    header, rules = [table.label], ["---"]
    body = [[line] for line in lines]
    for column in (*table.columns, *columns):
        by_release = {"published": table.rows if column in table.columns else {}, **measured}
        for release, rows in by_release.items():
            texts = [cell(rows.get(line, {}).get(column)) for line in lines]
            if any(texts):  # what was not published, or not measured, has no column
                header.append(f"{column}: {release}")
                for cells, text in zip(body, texts, strict=True):
                    cells.append(text)
    rules += ["---:"] * (len(header) - 1)
    source = table.source
    parts = [f"### {table.name}", f"Published: {source.text}, {source.measured_on}.", pipes([header, rules, *body])]
    if table.note:
        parts.append(table.note)
    return "\n\n".join(parts) + "\n"


def as_json(measured: Mapping[str, Measured]) -> dict[str, dict[str, dict[str, object]]]:
    """The measured cells as JSON can carry them: intervals as their fields."""
    return {
        release: {
            line: {column: vars(value) if isinstance(value, Interval) else value for column, value in cells.items()}
            for line, cells in rows.items()
        }
        for release, rows in measured.items()
    }


def lines_of(verdicts: Sequence[Verdict]) -> str:
    """The verdicts, a line each."""
    return "\n".join(f"- {verdict.line}" for verdict in verdicts)
