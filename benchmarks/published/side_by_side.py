"""A published table with what was measured beside it, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortmulti.tools.create.tables import number, pipes
from ortmulti.tools.measure.rounds import Interval

from .reports import Table
from .verdicts import Verdict, interval_text

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
