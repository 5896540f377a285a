"""The report of `ortmulti bench sleep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ortmulti.bench.reports.tables import MIB, Cell, Column, Report, Sheet, mebibytes_text, number, times_text, whole

Json = Mapping[str, Any]

THREADS = 4
"""Clients of the random sleeps. Each has inputs of its own."""

COLUMNS = tuple(
    Column(key, head, scale=1e-3)
    for key, head in {
        "first_sleep": "first sleep, ms",
        "sleep": "sleep, ms",
        "wake": "wake, ms",
        "request": "request that wakes, ms",
        "run": "next run, ms",
    }.items()
)

_NAMES = {
    "shared": "left by a closed pool",
    "awake": "awake",
    "files": "weights, from the files",
    "pinned": "weights, from a pinned copy",
    "session": "session",
    "copy": "copy from pinned memory",
    "onnxruntime": "onnxruntime's session again",
}
_PLACES = {"gpu": "GPU", "host": "host"}

_NOTES = (
    "Medians, below them the ranges. wake: until the pool takes requests; of onnxruntime the creation of a session. "
    "request that wakes: the answer to a request of a sleeping pool; of onnxruntime the creation and a run. copy: as "
    "many bytes as a sleep of the weights gives back, the lower bound of a wake. GPU, host: memory beyond that from "
    "before the pool, without what all models share, such as kernels: a closed pool leaves that. growth: from 100 "
    "random sleeps to the end. equal: all answers have the bits of those "
    "before the first sleep."
)


def headline(document: Json) -> str:
    """Return one sentence for each model: how long it wakes, beside onnxruntime."""
    lines = []
    for model in document["models"]:
        rows = {row["kind"]: row for row in document["rows"] if row["model"] == model["path"]}
        wakes = [
            f"{number(rows[kind]['wake']['median'] * 1e3)} ms ({_NAMES[kind]})"
            for kind in ("files", "pinned", "session")
            if kind in rows
        ]
        where = f"{model['name']} on {document['settings']['device']}"
        if not wakes:
            lines.append(f"{where}: nothing was measured.")
            continue
        again = number(rows["onnxruntime"]["wake"]["median"] * 1e3)
        lines.append(f"{where} wakes in {', '.join(wakes)}. Creating onnxruntime's session again takes {again} ms.")
    return "\n".join(lines)


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield the tables of each model: of the sleeps in turns, and of those at random times."""
    settings = document["settings"]
    places = ["host"] if settings["device"] == "cpu" else ["gpu", "host"]
    mib: Any = {"scale": MIB, "text": whole}
    in_use = [Column(place, f"{_PLACES[place]}, MiB", show=_in_use(place), **mib) for place in places]
    growth = [Column(place, f"{_PLACES[place]} growth, MiB", show=_growth(place)) for place in places]
    counts = {"slept": "sleeps", "woken": "wakes", "answers": "answers", "different": "differ"}
    for model in document["models"]:
        measured = [one for one in document["measurements"] if one["model"] == model["path"] and "error" not in one]
        for turns in (one for one in measured if one["experiment"] == "turns"):
            weights = [f"weights {mebibytes_text(turns['weights'])} MiB"] if turns["weights"] else []
            graphs = ["CUDA graphs"] if settings["graphs"] else []
            parts = [model["name"], settings["device"], *weights, *graphs, times_text(settings["repeat"], "round")]
            rows = [row for row in document["rows"] if row["model"] == model["path"]]
            columns = (*COLUMNS, *in_use, Column("equal", "equal"))
            yield Sheet(", ".join(parts), ["sleep"], lambda row: [(_NAMES[row["kind"]], "")], columns, rows)
        if randoms := [one for one in measured if one["experiment"] == "random"]:
            yield Sheet(
                f"{model['name']}, sleeps at random times, {THREADS} threads",
                ["sleep"],
                lambda one: [(_NAMES[one["kinds"][0]], "")],
                [*(Column(key, head) for key, head in counts.items()), *growth],
                randoms,
                lambda one: bool(one["different"]),
            )


def _in_use(place: str) -> Callable[[Json], int | None]:
    return lambda row: row["memory"] and row["memory"][place]


def _growth(place: str) -> Callable[[Json], Cell]:
    return lambda one: (f"{(one['memory']['end'][place] - one['memory']['settled'][place]) / MIB:.1f}", "")


REPORT = Report(headline, sheets, lambda _document, _details: _NOTES)
