"""Results as tables, for the terminal (rich) and for Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.bench.measure.rounds import spread

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Json = Mapping[str, Any]
Cell = tuple[str, str]
"""A text, and what goes below it in the terminal and behind it in brackets in Markdown."""

MIB = 1 << 20
_UNLIMITED = 10_000


def whole(value: float) -> str:
    """Return a number without digits behind the point."""
    return f"{value:.0f}"


IN_MIB: Any = {"scale": MIB, "text": whole}
"""Shows a `Column` of bytes in MiB."""


def number(value: float) -> str:
    """Return a number with two or three significant digits: 0.0012, 0.012, 0.12, 1.23, 12.3, 123."""
    if abs(value) < 0.00005:
        return "0"
    places = next((places for places, bound in ((4, 0.01), (3, 0.1), (2, 10), (1, 100)) if abs(value) < bound), 0)
    return f"{value:.{places}f}"


def cell(value: Any, scale: float = 1.0, text: Callable[[float], str] = number) -> Cell:
    """Return the cell of a row's figure: a spread or an interval, the largest one of several by device, a number,
    whether something holds, or a cell already.
    """
    if isinstance(value, Mapping) and "median" not in value:
        value = max(value.values(), key=lambda spread: float(spread["median"]), default=None)
    if isinstance(value, tuple):
        return value
    if isinstance(value, Mapping):
        ends, between = (("low", "high"), " to ") if "low" in value else (("lowest", "highest"), "-")
        median, *texts = (text(value[key] / scale) for key in ("median", *ends))
        return median, "" if texts[0] == texts[1] else between.join(texts)
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "NO", None: "-"}[value], ""
    return text(value / scale) if isinstance(value, float) or scale != 1 else str(value), ""


@dataclass(frozen=True)
class Column:
    """A figure of the rows, and how a table shows it.

    Attributes:
        key: its field of a row.
        head: the column's; a unit comes after a comma. "" for a figure that only the JSON has.
        of: returns the figure of a measurement, or None; default: its field `key`.
        summary: makes the row's figure from those of its measurements; None: the row has it in another way.
        show: returns what the column shows of a row, see `cell`; default: the field `key`.
        scale: the unit of the column.
        text: makes a number a text.
        rare: whether the column is left out where no row has the figure.
        detail: whether only specialists read it.
    """

    key: str
    head: str = ""
    of: Callable[[Json], Any] | None = None
    summary: Callable[[Iterable[Any]], Any] | None = spread
    show: Callable[[Json], Any] | None = None
    scale: float = 1.0
    text: Callable[[float], str] = number
    rare: bool = False
    detail: bool = False

    def cell(self, row: Json) -> Cell:
        """Return the cell of a row."""
        return cell(self.show(row) if self.show else row[self.key], self.scale, self.text)


def label(key: str, show: Callable[[Json], Any] | None = None) -> Column:
    """Return a column of texts, whose head is the name of a row's field, by default that field."""
    return Column(key, key, show=show)


def figures(columns: Iterable[Column], measurements: Sequence[Json]) -> dict[str, Any]:
    """Return the figures of a row from its measurements, by key."""
    return {
        column.key: column.summary(
            value for one in measurements if (value := column.of(one) if column.of else one.get(column.key)) is not None
        )
        for column in columns
        if column.summary
    }


def failed_text(row: Json) -> str:
    """Return how many of a row's measurements failed; "" for none."""
    failed = len(row["errors"])
    return f"{failed}/{failed + row['measured']} failed" if failed else ""


@dataclass(frozen=True)
class Sheet:
    """One table of a report.

    Attributes:
        title: "" for none.
        labels: the first columns, of texts. The first one's text is shown once for all rows that have it in common.
        columns: the columns of numbers.
        rows: the rows.
        bad: whether a row is shown in red.
    """

    title: str
    labels: Sequence[Column]
    columns: Sequence[Column]
    rows: Sequence[Json]
    bad: Callable[[Json], bool] = lambda row: bool(row.get("errors")) or row.get("equal") is False

    def shown(self, details: bool) -> list[Column]:
        """Return the columns to show."""
        columns = [column for column in self.columns if column.head and (details or not column.detail)]
        return [column for column in columns if not column.rare or any(row[column.key] for row in self.rows)]

    def tables(self, console: Console, details: bool) -> list[Table]:
        """Return one rich table, or as many as it takes where `console` is too narrow; the first has the title."""
        unlimited = console.options.update(width=_UNLIMITED)
        found: list[Table] = []
        left = self.shown(details)
        while left:
            for count in range(len(left), 0, -1):
                table = self._table(left[:count], "" if found else self.title)
                if console.measure(table, options=unlimited).maximum <= console.width:
                    break
            found.append(table)
            left = left[count:]
        return found

    def _table(self, columns: Sequence[Column], title: str) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=escape(title) or None, title_justify="left", box=SIMPLE_HEAD, show_edge=False)
        table.padding = (0, 1, 0, 0)
        for column in (*self.labels, *columns):  # the unit goes below the name
            head = column.head.replace(", ", "\n") if "," in column.head else f"{column.head}\n"
            table.add_column(head, justify="left" if column in self.labels else "right", no_wrap=True)
        groups = [[*rows] for _, rows in itertools.groupby(self.rows, self.labels[0].cell)]
        for rows in groups:
            for row in rows:
                cells = [column.cell(row) for column in (*self.labels, *columns)]
                if row is not rows[0]:
                    cells[0] = ("", "")
                texts = [f"{first}\n[dim]{second}[/dim]" if second else first for first, second in cells]
                ends = len(groups) < len(self.rows) and row is rows[-1] and rows is not groups[-1]
                table.add_row(*texts, style="red" if self.bad(row) else None, end_section=ends)
        return table

    def markdown(self, details: bool) -> str:
        """Return a heading and the table."""
        columns = [*self.labels, *(shown := self.shown(details))]
        lines = [
            [column.head for column in columns],
            ["---"] * len(self.labels) + ["---:"] * len(shown),
        ]
        for row in self.rows:
            cells = [column.cell(row) for column in columns]
            lines.append([f"{first} ({second})" if second else first for first, second in cells])
        return f"### {self.title}\n\n{pipes(lines)}\n"


@dataclass(frozen=True)
class Report:
    """How a kind of result is shown.

    Attributes:
        headline: what the result says, in one sentence for each model.
        sheets: the tables.
        notes: explains the tables, with those for specialists if its second argument is true.
        save_plot: draws the result and writes it as an image.
    """

    headline: Callable[[Json], str]
    sheets: Callable[[Json], Iterable[Sheet]]
    notes: Callable[[Json, bool], str]
    save_plot: Callable[[Json, Path], None] | None = None

    def tables(self, document: Json, console: Console, details: bool = False) -> list[Table]:
        """Return rich tables that are not wider than `console`."""
        return [table for sheet in self.sheets(document) for table in sheet.tables(console, details)]

    def markdown(self, document: Json, details: bool = False) -> str:
        """Write a result as Markdown: the sentences, the tables with headings, and the notes."""
        notes = self.notes(document, details).replace("below them", "in brackets").replace("below it", "in brackets")
        tables = [sheet.markdown(details) for sheet in self.sheets(document)]
        return "\n".join([f"{self.headline(document)}\n", *tables, f"{notes}\n"])


def pipes(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def model_text(model: Json) -> str:
    """Return a model's name and size."""
    size = model["bytes"] + model["external_bytes"]
    return f"{model['name']}, {size / 1e9:.2f} GB" if size >= 1e9 else f"{model['name']}, {size / 1e6:.3g} MB"


def times_text(count: int, what: str) -> str:
    """Return a number of things: "1 round", "2 rounds"."""
    return f"{count} {what}{'s'[: count != 1]}"
