"""The report of `ortmulti bench sleep`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ortmulti.bench.create.tables import number, plain_table, spread_cell, two_lines
from ortmulti.bench.measure import sleep

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MIB = 1 << 20

_FIGURES = {
    "first sleep, ms": "first_sleep",
    "sleep, ms": "sleep",
    "wake, ms": "wake",
    "request that wakes, ms": "request",
    "next run, ms": "run",
}

_NAMES = {
    "shared": "left by a closed pool",
    "awake": "awake",
    "files": "weights, from the files",
    "pinned": "weights, from a pinned copy",
    "session": "session",
    "copy": "copy from pinned memory",
    "onnxruntime": "onnxruntime's session again",
}

NOTES = (
    "Medians, below them the ranges. wake: until the pool takes requests; of onnxruntime the creation of a session. "
    "request that wakes: the answer to a request of a sleeping pool; of onnxruntime the creation and a run. copy: as "
    "many bytes as a sleep of the weights gives back, the lower bound of a wake. GPU, host: memory beyond that from "
    "before the pool, without what all models share, such as kernels: a closed pool leaves that. growth: from 100 "
    "random sleeps to the end. equal: all answers have the bits of those "
    "before the first sleep."
)


def headline(document: Mapping[str, Any]) -> str:
    """Return one sentence for each model: how long it wakes, beside onnxruntime."""
    lines = []
    for model in document["models"]:
        rows = {row["kind"]: row for row in document["rows"] if row["model"] == model["path"]}
        wakes = [
            f"{number(rows[kind]['wake']['median'] * 1e3)} ms ({_NAMES[kind]})" for kind in sleep.KINDS if kind in rows
        ]
        where = f"{model['name']} on {document['settings']['device']}"
        if not wakes:
            lines.append(f"{where}: nothing was measured.")
            continue
        again = number(rows["onnxruntime"]["wake"]["median"] * 1e3)
        lines.append(f"{where} wakes in {', '.join(wakes)}. Creating onnxruntime's session again takes {again} ms.")
    return "\n".join(lines)


def tables(document: Mapping[str, Any], _console: Console) -> Iterator[Table]:
    """Yield the tables of each model."""
    settings = document["settings"]
    places = ["host"] if settings["device"] == "cpu" else ["gpu", "host"]
    columns = [{"gpu": "GPU, MiB", "host": "host, MiB"}[place] for place in places]
    for model in document["models"]:
        measured = [one for one in document["measurements"] if one["model"] == model["path"] and "error" not in one]
        for turns in (one for one in measured if one["experiment"] == "turns"):
            yield _table_of_turns(document, model, turns, places, columns)
        if randoms := [one for one in measured if one["experiment"] == "random"]:
            yield _table_of_random(model, randoms, places, columns)


def _table_of_turns(
    document: Mapping[str, Any],
    model: Mapping[str, Any],
    turns: Mapping[str, Any],
    places: list[str],
    columns: list[str],
) -> Table:
    settings = document["settings"]
    weights = [f"weights {turns['weights'] / _MIB:.0f} MiB"] if turns["weights"] else []
    graphs = ["CUDA graphs"] if settings["graphs"] else []
    title = ", ".join([model["name"], settings["device"], *weights, *graphs, f"{settings['repeat']} rounds"])
    table = plain_table(title, ["sleep"], [*_FIGURES, *columns, "equal"])
    for row in document["rows"]:
        if row["model"] == model["path"]:
            memory = row["memory"]
            cells = [
                *(spread_cell(row[figure], 1e-3) for figure in _FIGURES.values()),
                *((f"{memory[place] / _MIB:.0f}" if memory else "-", "") for place in places),
                ({True: "yes", False: "NO", None: "-"}[row["equal"]], ""),
            ]
            table.add_row(_NAMES[row["kind"]], *two_lines(cells), style="red" if row["equal"] is False else None)
    return table


def _table_of_random(
    model: Mapping[str, Any], randoms: list[Mapping[str, Any]], places: list[str], columns: list[str]
) -> Table:
    title = f"{model['name']}, sleeps at random times, {sleep.THREADS} threads"
    growths = [column.replace(",", " growth,") for column in columns]
    table = plain_table(title, ["sleep"], ["sleeps", "wakes", "answers", "differ", *growths])
    for one in randoms:
        memory = one["memory"]
        growth = [f"{(memory['end'][place] - memory['settled'][place]) / _MIB:.1f}" for place in places]
        counts = [str(one[key]) for key in ("slept", "woken", "answers", "different")]
        table.add_row(_NAMES[one["kinds"][0]], *counts, *growth, style="red" if one["different"] else None)
    return table
