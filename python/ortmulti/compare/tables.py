"""Results as tables, for the terminal (rich) and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .devices import describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Json = Mapping[str, Any]

_MIB = 1 << 20


def number(value: float) -> str:
    """A number with two or three digits that say something: 0.0012, 0.012, 0.12, 1.23, 12.3, 123."""
    if value == 0:
        return "0"
    places = next((places for places, bound in ((4, 0.01), (3, 0.1), (2, 10), (1, 100)) if abs(value) < bound), 0)
    return f"{value:.{places}f}"


def _spread(spread: Json | None, scale: float = 1.0, text: Callable[[float], str] = number) -> tuple[str, str]:
    """The median and the range ("" where all values are one) as texts."""
    if spread is None:
        return "-", ""
    median, lowest, highest = (text(spread[key] / scale) for key in ("median", "lowest", "highest"))
    return median, "" if lowest == highest else f"{lowest}-{highest}"


def _plain(value: float | None) -> tuple[str, str]:
    return ("-" if value is None else f"{value:.2f}"), ""


def _mebibytes(spread: Json | None) -> tuple[str, str]:
    return _spread(spread, _MIB, lambda value: f"{value:.0f}")


def _largest_gpu(row: Json) -> Json | None:
    spreads = (row["gpu_memory"] or {}).values()
    return max(spreads, key=lambda spread: float(spread["median"]), default=None)


def _equal(row: Json) -> tuple[str, str]:
    return {True: "yes", False: "NO", None: "-"}[row["equal"]], ""


_Column = tuple[str, Callable[[Json], tuple[str, str]]]

_COLUMNS: tuple[_Column, ...] = (
    ("starting, s", lambda row: _spread(row["starting"])),
    ("creation, s", lambda row: _spread(row["creation"])),
    ("a session, s", lambda row: _spread(row["session"])),
    ("ready, s", lambda row: _spread(row["ready"])),
    ("first run, s", lambda row: _spread(row["first_run"])),
    ("peak RSS, MiB", lambda row: _mebibytes(row["peak_rss"])),
    ("GPU, MiB", lambda row: _mebibytes(_largest_gpu(row))),
    ("S", lambda row: _plain(row["speedup"])),
    ("S/N", lambda row: _plain(row["efficiency"])),
    ("(S-1)/(N-1)", lambda row: _plain(row["parallel_efficiency"])),
    ("equal", _equal),
)

# So many of the columns, the first ones, are times.
_TIMES = 5

_UNLIMITED = 10_000

NOTES = (
    "Medians, below them the ranges. ready = starting + creation. S = sequential creation / creation, N sessions. Peak "
    "RSS: of all processes together, pages that they share counted in each. equal: outputs bit for bit those of the "
    "sequential sessions (for sequential: of its own first repetition)."
)


def _columns(document: Json) -> list[_Column]:
    on_gpu = any(row["gpu_memory"] for row in document["rows"])
    return [column for column in _COLUMNS if on_gpu or column[0] != "GPU, MiB"]


def _title(document: Json, model: Json) -> str:
    size = model["bytes"] + model["external_bytes"]
    amount = f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
    settings = document["settings"]
    repeat = settings["repeat"]
    return f"{model['name']}, {amount}, {settings['page_cache']} page cache, {repeat} repetition{'s'[: repeat > 1]}"


def _groups(document: Json, model: Json) -> Iterator[list[Json]]:
    """The model's rows, those of the same devices together."""
    group: list[Json] = []
    for row in document["rows"]:
        if row["model"] == model["path"]:
            if group and group[-1]["devices"] != row["devices"]:
                yield group
                group = []
            group.append(row)
    if group:
        yield group


def _strategy(row: Json) -> tuple[str, str]:
    failed = len(row["errors"])
    return row["strategy"], f"{failed}/{failed + row['measured']} failed" if failed else ""


def creation_tables(document: Json, console: Console) -> list[Table]:
    """A rich table for each model of a comparison; two, times and the rest, where `console` is too narrow for one."""
    tables = []
    columns = _columns(document)
    unlimited = console.options.update(width=_UNLIMITED)
    for model in document["models"]:
        groups, title = list(_groups(document, model)), _title(document, model)
        whole = _creation_table(groups, title, columns)
        if console.measure(whole, options=unlimited).maximum <= console.width:
            tables.append(whole)
        else:
            tables.append(_creation_table(groups, title, columns[:_TIMES]))
            tables.append(_creation_table(groups, None, columns[_TIMES:]))
    return tables


def _creation_table(groups: Sequence[Sequence[Json]], title: str | None, columns: Sequence[_Column]) -> Table:
    table = _table(title, ["devices", "strategy"], [name for name, _ in columns])
    for group in groups:
        for row in group:
            texts = _two_lines([_strategy(row), *(cell(row) for _, cell in columns)])
            style = "red" if row["errors"] or row["equal"] is False else None
            devices = describe(row["devices"]) if row is group[0] else ""
            table.add_row(devices, *texts, style=style, end_section=row is group[-1])
    return table


def markdown(document: Json) -> str:
    """A comparison as Markdown: for each model a heading and a table."""
    columns = _columns(document)
    parts = []
    for model in document["models"]:
        lines = [["devices", "strategy", *(name for name, _ in columns)], ["---", "---", *["---:"] * len(columns)]]
        for group in _groups(document, model):
            for row in group:
                cells = [_strategy(row), *(cell(row) for _, cell in columns)]
                texts = [f"{first} ({second})" if second else first for first, second in cells]
                lines.append([describe(row["devices"]), *texts])
        parts.append(f"### {_title(document, model)}\n\n{_pipes(lines)}\n")
    parts.append(NOTES.replace("below them", "in brackets") + "\n")
    return "\n".join(parts)


def _pipes(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def gil_table(document: Json) -> Table:
    """The rich table of `ortmulti bench gil`."""
    numbers = ["creation, s", "delay, s", "delay / creation", "largest / creation"]
    table = _table(_title(document, document["models"][0]), ["library", "release"], numbers)
    for row in document["rows"]:
        cells = [
            _spread(row["creation"]),
            _spread(row["delay"]),
            *(_spread(row[key], 0.01, lambda value: f"{value:.1f}%") for key in ("delay_share", "largest_share")),
        ]
        table.add_row(row["library"], row["release"] or "-", *_two_lines(cells), style="red" if row["errors"] else None)
    return table


def _table(title: str | None, texts: Sequence[str], numbers: Sequence[str]) -> Table:
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


def _two_lines(cells: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{first}\n[dim]{second}[/dim]" if second else first for first, second in cells]
