"""Results of `ortmulti bench run` as tables, for the terminal (rich) and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ortmulti.bench.create.tables import (
    columns_that_fit,
    interval_cell,
    number,
    pipes,
    plain_table,
    spread_cell,
    two_lines,
)
from ortmulti.bench.measure.devices import describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Json = Mapping[str, Any]
Cell = tuple[str, str]

_MIB = 1 << 20
_MILLI = 1e-3

_NOTES = (
    "Medians over the rounds, below them the ranges; of the rate and scaling the confidence intervals (95% from six "
    "rounds on). core: a pool of ortmulti's own sessions; threads: the onnxruntime package in Python threads; "
    "processes: a pool of its sessions, each in a process. rate: answers a second. scaling: of N devices, over N times "
    "one device's rate in the same round. Latency counts from when a request is submitted, with open loops from when "
    "it was to arrive."
)
_DETAIL_NOTES = (
    " ratio: to the first variant's rate in the same round. CPU: processor time of all processes. ceiling: answers a "
    "second where the model does nothing, on the CPU, with as many sessions and the same clients. asked late: how late "
    "the clients were with 99% of the requests."
)


def notes(details: bool = False) -> str:
    """Explain the columns of the tables."""
    return _NOTES + _DETAIL_NOTES * details


class _Column(NamedTuple):
    name: str
    cell: Callable[[Json], Cell]
    # The column is left out where no row has this.
    needs: str = ""
    # Only specialists read it.
    detail: bool = False


def _milliseconds(key: str) -> Callable[[Json], Cell]:
    return lambda row: spread_cell(row[key], _MILLI)


def _rate(row: Json) -> Cell:
    text, interval = interval_cell(row["throughput"])
    return (text, f"of {number(row['offered']['median'])}") if row["offered"] else (text, interval)


def _gpu(row: Json) -> Cell:
    spreads = (row["gpu_memory"] or {}).values()
    largest = max(spreads, key=lambda spread: float(spread["median"]), default=None)
    return spread_cell(largest, _MIB, lambda value: f"{value:.0f}")


_COLUMNS = (
    _Column("rate, 1/s", _rate),
    _Column("scaling", lambda row: interval_cell(row["scaling"]), "scaling"),
    _Column("ratio", lambda row: interval_cell(row["over_first"]), "over_first", detail=True),
    _Column("p50, ms", _milliseconds("p50"), "p50"),
    _Column("p99, ms", _milliseconds("p99"), "p99"),
    _Column("p99.9, ms", _milliseconds("p999"), "p999", detail=True),
    _Column("CPU, ms/request", _milliseconds("cpu_per_request"), "cpu_per_request", detail=True),
    _Column("cores", lambda row: spread_cell(row["cores"]), "cores", detail=True),
    _Column("memory, MiB", lambda row: spread_cell(row["pss"], _MIB, lambda value: f"{value:.0f}"), "pss"),
    _Column("GPU, MiB", _gpu, "gpu_memory"),
    _Column(
        "ceiling, 1/s",
        lambda row: ("-" if row["ceiling"] is None else number(row["ceiling"]), ""),
        "ceiling",
        detail=True,
    ),
    _Column("asked late, ms", _milliseconds("lag"), "lag", detail=True),
)


def _groups(document: Json) -> Iterator[tuple[str, list[Json]]]:
    """The rows of each model and batch size, with a title."""
    settings = document["settings"]
    names = {model["path"]: model["name"] for model in document["models"]}
    groups: dict[tuple[str, int], list[Json]] = {}
    for row in document["rows"]:
        groups.setdefault((row["model"], row["batch"]), []).append(row)
    for (model, batch), rows in groups.items():
        rounds_measured = settings["rounds"]
        yield (
            f"{names[model]}, batch {batch}, inputs on the {settings['inputs']}, outputs on the {settings['outputs']}, "
            f"{rounds_measured} round{'s'[: rounds_measured > 1]} of {settings['seconds']:g} s",
            rows,
        )


def _texts(row: Json, previous: Json | None) -> list[Cell]:
    same = previous is not None and row["devices"] == previous["devices"]
    failed = len(row["errors"])
    note = f"{failed}/{failed + row['measured']} failed" if failed else ""
    if row["unanswered"]:
        note = f"{row['unanswered']} unanswered"
    return [("" if same else describe(row["devices"]), ""), (row["variant"], note), (row["load"], "")]


_HEADS = ("devices", "variant", "load")


def _columns(document: Json, details: bool) -> list[_Column]:
    columns = [column for column in _COLUMNS if details or not column.detail]
    return [column for column in columns if not column.needs or any(row[column.needs] for row in document["rows"])]


def headline(document: Json) -> str:
    """Return one sentence for each model and batch size, on the most devices: who won, by how much, and over what."""
    names = {model["path"]: model["name"] for model in document["models"]}
    groups: dict[tuple[str, int], list[Json]] = {}
    for row in document["rows"]:
        if row["kind"] == "closed" and row["throughput"]:
            groups.setdefault((row["model"], row["batch"]), []).append(row)
    return "\n".join(f"{names[model]}, batch {batch}, {_sentence(rows)}." for (model, batch), rows in groups.items())


def _sentence(rows: Sequence[Json]) -> str:
    most = max(len(row["devices"]) for row in rows)
    on_most = [row for row in rows if len(row["devices"]) == most]
    best, *others = sorted(on_most, key=lambda row: -float(row["throughput"]["median"]))
    rate = f"{number(best['throughput']['median'])} answers a second"
    where = f"on {describe(best['devices'])}: {best['variant']}"
    if not others:
        return f"{where} gives {rate}"
    following = others[0]
    if best["throughput"]["low"] <= following["throughput"]["high"]:
        return f"{where} gives {rate}, with no clear difference from {following['variant']}"
    ratio = best["throughput"]["median"] / following["throughput"]["median"]
    return f"{where} wins with {rate}, {ratio:.2f} times as many as {following['variant']}, the next one"


def run_tables(document: Json, console: Console, details: bool = False) -> list[Table]:
    """Rich tables: one for each model and batch size, or as many as it takes where `console` is too narrow."""
    found: list[Table] = []
    for title, rows in _groups(document):

        def make(columns: Sequence[_Column], title: str, rows: list[Json] = rows) -> Table:
            table = plain_table(title, _HEADS, [column.name for column in columns])
            for number_of, row in enumerate(rows):
                previous = rows[number_of - 1] if number_of else None
                following = rows[number_of + 1] if number_of + 1 < len(rows) else None
                cells = [*_texts(row, previous), *(column.cell(row) for column in columns)]
                last = following is None or following["devices"] != row["devices"]
                table.add_row(*two_lines(cells), style="red" if row["errors"] else None, end_section=last)
            return table

        found += columns_that_fit(_columns(document, details), title, make, console)
    return found


def markdown(document: Json, details: bool = False) -> str:
    """Write the result as Markdown: the sentences, then for each model and batch size a heading and a table."""
    columns = _columns(document, details)
    parts = [headline(document) + "\n"]
    for title, rows in _groups(document):
        lines = [[*_HEADS, *(column.name for column in columns)], ["---"] * len(_HEADS) + ["---:"] * len(columns)]
        for row in rows:
            cells = [*_texts(row, None), *(column.cell(row) for column in columns)]
            lines.append([f"{first} ({second})" if second else first for first, second in cells])
        parts.append(f"### {title}\n\n{pipes(lines)}\n")
    parts.append(notes(details).replace("below them", "in brackets") + "\n")
    return "\n".join(parts)
