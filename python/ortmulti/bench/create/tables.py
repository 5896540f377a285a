"""Results as tables, for the terminal (rich) and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ortmulti.bench.measure.devices import describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Json = Mapping[str, Any]
C = TypeVar("C")

_MIB = 1 << 20


def number(value: float) -> str:
    """Return a number with two or three significant digits: 0.0012, 0.012, 0.12, 1.23, 12.3, 123."""
    if abs(value) < 0.00005:
        return "0"
    places = next((places for places, bound in ((4, 0.01), (3, 0.1), (2, 10), (1, 100)) if abs(value) < bound), 0)
    return f"{value:.{places}f}"


def spread_cell(spread: Json | None, scale: float = 1.0, text: Callable[[float], str] = number) -> tuple[str, str]:
    """Return the median and the range ("" where all values are one) as texts."""
    if spread is None:
        return "-", ""
    median, lowest, highest = (text(spread[key] / scale) for key in ("median", "lowest", "highest"))
    return median, "" if lowest == highest else f"{lowest}-{highest}"


def _plain(value: float | None) -> tuple[str, str]:
    return ("-" if value is None else f"{value:.2f}"), ""


def _mebibytes(spread: Json | None) -> tuple[str, str]:
    return spread_cell(spread, _MIB, lambda value: f"{value:.0f}")


def _largest_gpu(row: Json) -> Json | None:
    spreads = (row["gpu_memory"] or {}).values()
    return max(spreads, key=lambda spread: float(spread["median"]), default=None)


def _equal(row: Json) -> tuple[str, str]:
    return {True: "yes", False: "NO", None: "-"}[row["equal"]], ""


def interval_cell(interval: Json | None) -> tuple[str, str]:
    """Return the median and its confidence interval as texts."""
    if interval is None:
        return "-", ""
    median, low, high = (number(interval[key]) for key in ("median", "low", "high"))
    return median, "" if low == high else f"{low} to {high}"


class _Column(NamedTuple):
    name: str
    cell: Callable[[Json], tuple[str, str]]
    # The column is left out where no row has this.
    needs: str = ""
    # Only specialists read it.
    detail: bool = False


_COLUMNS: tuple[_Column, ...] = (
    _Column("starting, s", lambda row: spread_cell(row["starting"]), detail=True),
    _Column("creation, s", lambda row: spread_cell(row["creation"])),
    _Column("a session, s", lambda row: spread_cell(row["session"]), detail=True),
    _Column("ready, s", lambda row: spread_cell(row["ready"])),
    _Column("first run, s", lambda row: spread_cell(row["first_run"])),
    _Column("driver floor, s", lambda row: spread_cell(row["driver_floor"]), "driver_floor", detail=True),
    _Column("above floor, s", lambda row: interval_cell(row["above_floor"]), "above_floor", detail=True),
    _Column("sequential read, s", lambda row: spread_cell(row["sequential_read"]), "sequential_read", detail=True),
    _Column("creation / floors", lambda row: interval_cell(row["times_floors"]), "times_floors", detail=True),
    _Column("peak RSS, MiB", lambda row: _mebibytes(row["peak_rss"])),
    _Column("GPU, MiB", lambda row: _mebibytes(_largest_gpu(row)), "gpu_memory"),
    _Column("speedup", lambda row: _plain(row["speedup"])),
    _Column("S/N", lambda row: _plain(row["efficiency"]), detail=True),
    _Column("(S-1)/(N-1)", lambda row: _plain(row["parallel_efficiency"]), detail=True),
    _Column("equal", _equal),
)

_UNLIMITED = 10_000

PLAIN = "plain onnxruntime in a loop"
"""What the strategy `sequential` is, for readers."""

_USUAL_NOTES = (
    "Medians, below them the ranges. sequential: plain onnxruntime in a loop. creation: from opening the libraries "
    "until all sessions are there; ready: with the start of the process. speedup: sequential creation / creation. Peak "
    "RSS: of all processes together; pages that they share count in each. equal: the outputs have the same bits as "
    "those of the sequential sessions."
)
_DETAIL_NOTE = " S is the speedup and N the number of sessions; ready = starting + creation."
_FLOOR_NOTE = (
    " driver floor: cuInit and the contexts alone, in a process beside each measurement; above floor = creation - its "
    "driver floor, below it the median's {confidence:.0%} confidence interval."
)
_COLD_NOTE = (
    " sequential read: `cat` of the model's files, beside each measurement; creation / floors: over the later of that "
    "and the driver floor, below it the median's {confidence:.0%} confidence interval."
)


def headline(document: Json) -> str:
    """Return one sentence for each model and its devices: who won, by how much, and over what."""
    return "\n".join(_sentence(model, group) for model in document["models"] for group in _groups(document, model))


def _sentence(model: Json, group: Sequence[Json]) -> str:
    where = f"{model['name']} on {describe(group[0]['devices'])}"
    measured = sorted((row for row in group if row["creation"]), key=lambda row: float(row["creation"]["median"]))
    plain = next((row for row in measured if row["strategy"] == "sequential"), None)
    others = [row for row in measured if row is not plain]
    if not others:
        return f"{where}: {f'{PLAIN} takes {_seconds(plain)}' if plain else 'nothing was measured'}."
    best = others[0]
    name, best_text = best["strategy"], _seconds(best)
    if plain is None:
        return f"{where}: {name} wins: created in {best_text}. Not compared with {PLAIN}: add the strategy sequential."
    ratio = plain["creation"]["median"] / best["creation"]["median"]
    if best["creation"]["highest"] < plain["creation"]["lowest"]:
        return (
            f"{where}: {name} wins: created in {best_text}, {ratio:.2f} times as fast as {PLAIN} ({_seconds(plain)})."
        )
    if plain["creation"]["highest"] < best["creation"]["lowest"]:
        return f"{where}: {PLAIN} wins: created in {_seconds(plain)}, {1 / ratio:.2f} times as fast as {name}."
    return f"{where}: no clear difference: created in {best_text} by {name}, in {_seconds(plain)} by {PLAIN}."


def _seconds(row: Json) -> str:
    return f"{number(row['creation']['median'])} s"


def notes(document: Json, details: bool = False) -> str:
    """Explain the columns of a comparison's tables."""
    text = _USUAL_NOTES + _DETAIL_NOTE * details
    for key, note in (("above_floor", _FLOOR_NOTE), ("times_floors", _COLD_NOTE)) if details else ():
        if intervals := [row[key] for row in document["rows"] if row[key]]:
            text += note.format(confidence=min(interval["confidence"] for interval in intervals))
    for row in document["rows"]:
        if row["not_shared"]:
            where = f"{Path(row['model']).stem} on {describe(row['devices'])}"
            text += f" Not shared, {where}: {'; '.join(row['not_shared'])}."
    return text


def _columns(document: Json, details: bool) -> list[_Column]:
    rows = document["rows"]
    columns = [column for column in _COLUMNS if details or not column.detail]
    return [column for column in columns if not column.needs or any(row[column.needs] for row in rows)]


_BEFORE = {"nothing": (), "contexts": ("contexts there before",), "model": ("second model of the process",)}


def _title(document: Json, model: Json) -> str:
    size = model["bytes"] + model["external_bytes"]
    amount = f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
    settings = document["settings"]
    repeat = settings["repeat"]
    parts = [
        model["name"],
        amount,
        f"{settings['page_cache']} page cache",
        *(["without a cache entry"] if settings.get("entry") is False else []),
        *_BEFORE[settings.get("before", "nothing")],
        f"{repeat} repetition{'s'[: repeat > 1]}",
    ]
    return ", ".join(parts)


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
    if not failed and row["not_shared"]:
        return row["strategy"], "see below"
    return row["strategy"], f"{failed}/{failed + row['measured']} failed" if failed else ""


def creation_tables(document: Json, console: Console, details: bool = False) -> list[Table]:
    """Rich tables of a comparison: one for each model, or as many as it takes where `console` is too narrow for one."""
    tables: list[Table] = []
    for model in document["models"]:
        groups = list(_groups(document, model))

        def make(columns: Sequence[_Column], title: str, groups: Sequence[Sequence[Json]] = groups) -> Table:
            return _creation_table(groups, title, columns)

        tables += columns_that_fit(_columns(document, details), _title(document, model), make, console)
    return tables


def columns_that_fit(
    columns: Sequence[C], title: str, make: Callable[[Sequence[C], str], Table], console: Console
) -> list[Table]:
    """Return one table of all columns, or as many as it takes where `console` is too narrow; the first has the title.

    Args:
        columns: what `make` makes columns of.
        title: the title; "" for none.
        make: makes a table.
        console: where they are printed.
    """
    tables = []
    unlimited = console.options.update(width=_UNLIMITED)
    left = list(columns)
    while left:
        count = len(left)
        table = make(left, title)
        while count > 1 and console.measure(table, options=unlimited).maximum > console.width:
            count -= 1
            table = make(left[:count], title)
        tables.append(table)
        left, title = left[count:], ""
    return tables


def _creation_table(groups: Sequence[Sequence[Json]], title: str, columns: Sequence[_Column]) -> Table:
    table = plain_table(title, ["devices", "strategy"], [column.name for column in columns])
    for group in groups:
        for row in group:
            texts = two_lines([_strategy(row), *(column.cell(row) for column in columns)])
            style = "red" if row["errors"] or row["equal"] is False else None
            devices = describe(row["devices"]) if row is group[0] else ""
            table.add_row(devices, *texts, style=style, end_section=row is group[-1])
    return table


def markdown(document: Json, details: bool = False) -> str:
    """Write a comparison as Markdown: the sentences, then for each model a heading and a table."""
    columns = _columns(document, details)
    parts = [headline(document) + "\n"]
    for model in document["models"]:
        lines = [
            ["devices", "strategy", *(column.name for column in columns)],
            ["---", "---", *["---:"] * len(columns)],
        ]
        for group in _groups(document, model):
            for row in group:
                cells = [_strategy(row), *(column.cell(row) for column in columns)]
                texts = [f"{first} ({second})" if second else first for first, second in cells]
                lines.append([describe(row["devices"]), *texts])
        parts.append(f"### {_title(document, model)}\n\n{pipes(lines)}\n")
    parts.append(
        notes(document, details).replace("below them", "in brackets").replace("below it", "in brackets") + "\n"
    )
    return "\n".join(parts)


def pipes(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def gil_table(document: Json) -> Table:
    """Return the rich table of `ortmulti bench gil`."""
    numbers = ["creation, s", "delay, s", "delay / creation", "largest / creation"]
    table = plain_table(_title(document, document["models"][0]), ["library", "release"], numbers)
    for row in document["rows"]:
        cells = [
            spread_cell(row["creation"]),
            spread_cell(row["delay"]),
            *(spread_cell(row[key], 0.01, lambda value: f"{value:.1f}%") for key in ("delay_share", "largest_share")),
        ]
        table.add_row(row["library"], row["release"] or "-", *two_lines(cells), style="red" if row["errors"] else None)
    return table


def plain_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
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


def two_lines(cells: Sequence[tuple[str, str]]) -> list[str]:
    """Return cells for rich: text in brackets goes to a second line."""
    return [f"{first}\n[dim]{second}[/dim]" if second else first for first, second in cells]
