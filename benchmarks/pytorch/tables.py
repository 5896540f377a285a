"""The comparison with PyTorch as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ortmulti.tools.create.tables import interval_cell, pipes, plain_table, spread_cell, two_lines
from ortmulti.tools.measure.rounds import Spread

if TYPE_CHECKING:
    from rich.table import Table

Json = Mapping[str, Any]
Cell = tuple[str, str]

_MILLI = 1e-3

NOTES = (
    "Medians of the rounds, below them ranges, of the ratio the confidence interval (95% from six rounds on). A run is "
    "waited for before the next one begins. host: new NumPy arrays in and out, PyTorch through pinned buffers that are "
    "kept; device: both lie there. Ratio: the fastest of ortmulti's ways over PyTorch's fastest, below 1 ortmulti is "
    "faster."
)

_HEADS = ("setting", "ortmulti's fastest", "PyTorch's fastest")
_NUMBERS = ("ortmulti, ms", "PyTorch, ms", "ratio")
_WAY_HEADS = ("setting", "side", "way")
_WAY_NUMBERS = ("a run, ms", "difference")


def _cells(row: Json) -> list[Cell]:
    names = [(row[side]["name"] if row[side] else "-", "") for side in ("ortmulti", "pytorch")]
    times = [spread_cell(row[side]["seconds"] if row[side] else None, _MILLI) for side in ("ortmulti", "pytorch")]
    return [(row["setting"], ""), *names, *times, interval_cell(row["ratio"])]


def _way_cells(measurement: Json, way: Json) -> list[Cell]:
    if "error" in way:
        seconds, difference = ("-", "failed"), ("-", "")
    else:
        spread = Spread.of(way["seconds"])
        seconds = spread_cell(None if spread is None else asdict(spread), _MILLI)
        difference = (f"{way['difference']:.1e}", "" if way["equal"] else "TOO LARGE")
    return [(measurement["setting"], ""), (way["side"], ""), (way["name"], ""), seconds, difference]


def torch_tables(document: Json) -> list[Table]:
    """Rich tables: the fastest of both sides at each setting, and every way's time."""
    best = plain_table(f"ResNet-50 on {document['settings']['device']}", _HEADS, _NUMBERS)
    for row in document["rows"]:
        best.add_row(*two_lines(_cells(row)))
    ways = plain_table("every way", _WAY_HEADS, _WAY_NUMBERS)
    for measurement in document["measurements"]:
        for way in measurement["ways"]:
            ways.add_row(*two_lines(_way_cells(measurement, way)), end_section=way is measurement["ways"][-1])
    return [best, ways]


def markdown(document: Json) -> str:
    """The same as Markdown."""
    rows = [_cells(row) for row in document["rows"]]
    ways = [_way_cells(measurement, way) for measurement in document["measurements"] for way in measurement["ways"]]
    parts = [f"### ResNet-50 on {document['settings']['device']}\n"]
    for heads, numbers, lines in ((_HEADS, _NUMBERS, rows), (_WAY_HEADS, _WAY_NUMBERS, ways)):
        texts = [[f"{first} ({second})" if second else first for first, second in line] for line in lines]
        parts.append(pipes([[*heads, *numbers], ["---"] * len(heads) + ["---:"] * len(numbers), *texts]) + "\n")
    parts.append(NOTES.replace("below them", "in brackets") + "\n")
    return "\n".join(parts)
