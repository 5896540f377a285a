"""Results as tables, for the terminal (rich) and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Json = Mapping[str, Any]
Cell = tuple[str, str]
"""A text, and what goes below it in the terminal and behind it in brackets in Markdown."""

_MIB = 1 << 20
_UNLIMITED = 10_000


def number(value: float) -> str:
    """Return a number with two or three significant digits: 0.0012, 0.012, 0.12, 1.23, 12.3, 123."""
    if abs(value) < 0.00005:
        return "0"
    places = next((places for places, bound in ((4, 0.01), (3, 0.1), (2, 10), (1, 100)) if abs(value) < bound), 0)
    return f"{value:.{places}f}"


def whole(value: float) -> str:
    """Return a number without digits behind the point."""
    return f"{value:.0f}"


def spread_cell(spread: Json | None, scale: float = 1.0, text: Callable[[float], str] = number) -> Cell:
    """Return the median and the range ("" where all values are one) as texts."""
    if spread is None:
        return "-", ""
    median, lowest, highest = (text(spread[key] / scale) for key in ("median", "lowest", "highest"))
    return median, "" if lowest == highest else f"{lowest}-{highest}"


def interval_cell(interval: Json | None) -> Cell:
    """Return the median and its confidence interval as texts."""
    if interval is None:
        return "-", ""
    median, low, high = (number(interval[key]) for key in ("median", "low", "high"))
    return median, "" if low == high else f"{low} to {high}"


def spread_of(key: str, scale: float = 1.0) -> Callable[[Json], Cell]:
    """Return the cell of a row's spread."""
    return lambda row: spread_cell(row[key], scale)


def interval_of(key: str) -> Callable[[Json], Cell]:
    """Return the cell of a row's interval."""
    return lambda row: interval_cell(row[key])


def mebibytes(spread: Json | None) -> Cell:
    """Return the cell of a spread of bytes."""
    return spread_cell(spread, _MIB, whole)


def mebibytes_text(size: float) -> str:
    """Return bytes in MiB."""
    return whole(size / _MIB)


def largest_gpu(row: Json) -> Cell:
    """Return the cell of the GPU with the most memory in use."""
    spreads = (row["gpu_memory"] or {}).values()
    return mebibytes(max(spreads, key=lambda spread: float(spread["median"]), default=None))


def equal_cell(row: Json) -> Cell:
    """Return the cell of whether the outputs are equal."""
    return {True: "yes", False: "NO", None: "-"}[row["equal"]], ""


class Column(NamedTuple):
    """A column of numbers.

    Attributes:
        name: its head; a unit comes after a comma.
        cell: makes the cell of a row.
        needs: the column is left out where no row has this.
        detail: whether only specialists read it.
    """

    name: str
    cell: Callable[[Json], Cell]
    needs: str = ""
    detail: bool = False


def failed_text(row: Json) -> str:
    """Return how many of a row's measurements failed; "" for none."""
    failed = len(row["errors"])
    return f"{failed}/{failed + row['measured']} failed" if failed else ""


def _is_bad(row: Json) -> bool:
    return bool(row.get("errors")) or row.get("equal") is False


@dataclass(frozen=True)
class Sheet:
    """One table of a report.

    Attributes:
        title: "" for none.
        heads: of the columns of texts. The first one's text is shown once for all rows that have it in common.
        labels: makes the texts of a row.
        columns: the columns of numbers.
        rows: the rows.
        bad: whether a row is shown in red.
    """

    title: str
    heads: Sequence[str]
    labels: Callable[[Json], Sequence[Cell]]
    columns: Sequence[Column]
    rows: Sequence[Json]
    bad: Callable[[Json], bool] = _is_bad

    def shown(self, details: bool) -> list[Column]:
        """Return the columns to show."""
        columns = [column for column in self.columns if details or not column.detail]
        return [column for column in columns if not column.needs or any(row[column.needs] for row in self.rows)]

    def tables(self, console: Console, details: bool) -> list[Table]:
        """Return one rich table, or as many as it takes where `console` is too narrow; the first has the title."""
        unlimited = console.options.update(width=_UNLIMITED)
        found: list[Table] = []
        left = self.shown(details)
        while left:
            count = len(left)
            table = self._table(left, not found)
            while count > 1 and console.measure(table, options=unlimited).maximum > console.width:
                count -= 1
                table = self._table(left[:count], not found)
            found.append(table)
            left = left[count:]
        return found

    def _table(self, columns: Sequence[Column], titled: bool) -> Table:
        table = _plain_table(self.title if titled else "", self.heads, [column.name for column in columns])
        labels = [self.labels(row) for row in self.rows]
        grouped = len({first for first, *_ in labels}) < len(labels)
        for place, row in enumerate(self.rows):
            first, *others = labels[place]
            same = grouped and place > 0 and labels[place - 1][0] == first
            ends = grouped and place + 1 < len(labels) and labels[place + 1][0] != first
            cells = [("", "") if same else first, *others, *(column.cell(row) for column in columns)]
            texts = [f"{first}\n[dim]{second}[/dim]" if second else first for first, second in cells]
            table.add_row(*texts, style="red" if self.bad(row) else None, end_section=ends)
        return table

    def markdown(self, details: bool) -> str:
        """Return a heading and the table."""
        columns = self.shown(details)
        lines = [
            [*self.heads, *(column.name for column in columns)],
            ["---"] * len(self.heads) + ["---:"] * len(columns),
        ]
        for row in self.rows:
            cells = [*self.labels(row), *(column.cell(row) for column in columns)]
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


def _plain_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty rich table: columns of texts, then those of numbers, whose units go below their names."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title) if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in texts:
        table.add_column(f"{name}\n", no_wrap=True)
    for name in numbers:
        # The unit goes below the name.
        table.add_column(name.replace(", ", "\n") if "," in name else f"{name}\n", justify="right", no_wrap=True)
    return table


def model_text(model: Json) -> str:
    """Return a model's name and size."""
    size = model["bytes"] + model["external_bytes"]
    return f"{model['name']}, {size / 1e9:.2f} GB" if size >= 1e9 else f"{model['name']}, {size / 1e6:.3g} MB"


def times_text(count: int, what: str) -> str:
    """Return a number of things: "1 round", "2 rounds"."""
    return f"{count} {what}{'s'[: count != 1]}"
