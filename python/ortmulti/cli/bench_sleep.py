"""`ortmulti bench sleep`: how long pools sleep and wake, and what a sleeping one keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortmulti.bench.create.tables import number, plain_table, spread_cell, two_lines
from ortmulti.bench.measure import devices, sleep
from ortmulti.cli.bench import JsonFile, Timeout, end_with, write_files
from ortmulti.cli.output import show_tables, steps
from ortmulti.errors import InvalidArgument

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

_NOTES = (
    "Medians, below them the ranges. wake: until the pool takes requests; of onnxruntime the creation of a session. "
    "request that wakes: the answer to a request of a sleeping pool; of onnxruntime the creation and a run. copy: as "
    "many bytes as a sleep of the weights gives back, the lower bound of a wake. GPU, host: memory beyond that from "
    "before the pool, without what all models share, such as kernels: a closed pool leaves that. growth: from 100 "
    "random sleeps to the end. equal: all answers have the bits of those "
    "before the first sleep."
)


def bench_sleep(
    model: Annotated[list[Path], typer.Argument(help="One or more .onnx files.", show_default=False)],
    device_text: Annotated[
        str, typer.Option("--devices", help="One device, such as 0 or cpu. all: the first GPU, or else the CPU.")
    ] = "all",
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of sleep: files and pinned (level weights, woken from the files or from a pinned copy), and "
            "session (default: all of them; on the CPU session).",
        ),
    ] = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="Capture CUDA graphs.")] = False,
    repeat: Annotated[int, typer.Option(help="Rounds. Each measures every kind.")] = 10,
    sleeps: Annotated[
        int,
        typer.Option(
            "--random",
            metavar="N",
            help="Also sleep N times at random times while four threads send requests, with each kind in a new "
            "process. All answers are compared bit for bit, and the memory after 100 sleeps with that at the end.",
        ),
    ] = 0,
    batch: Annotated[int, typer.Option(help="Size of the dynamic batch dimension.")] = 1,
    sequence: Annotated[int, typer.Option(help="Size of the other dynamic dimensions.")] = 16,
    timeout: Timeout = 1800.0,
    json: JsonFile = None,
) -> None:
    """Measure how long a pool sleeps and wakes, and what a sleeping pool keeps.

    Each model has a process of its own, in which the kinds of sleep take turns. A wake is compared with a copy from
    pinned memory and with creating onnxruntime's session again. The exit status is 1 if an answer differs.
    """
    found = devices.parse_devices(device_text)
    if device_text.strip() != "all" and len(found) != 1:
        raise InvalidArgument(f"one device is measured at a time, not {devices.describe(found)}")
    with steps() as step:
        document = sleep.bench(
            list(dict.fromkeys(model)),
            found[0],
            kinds=[name.strip() for name in kinds.split(",")] if kinds is not None else None,
            graphs=graphs,
            repeat=repeat,
            sleeps=sleeps,
            batch=batch,
            sequence=sequence,
            timeout=timeout,
            progress=step,
        )
    show_tables(document, json, _headline(document), _tables, _NOTES)
    write_files(document, json)
    end_with(sleep.failures(document), document["partial"])


def _headline(document: Mapping[str, Any]) -> str:
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


def _tables(document: Mapping[str, Any], _console: Console) -> Iterator[Table]:
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
