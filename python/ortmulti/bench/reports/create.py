"""The report of `ortmulti bench create`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmulti.bench import strategies
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval, Spread, by_device
from ortmulti.bench.reports import plots
from ortmulti.bench.reports.tables import (
    MIB,
    Cell,
    Column,
    Report,
    Sheet,
    failed_text,
    model_text,
    number,
    times_text,
    whole,
)

Json = Mapping[str, Any]


def _seconds_of_all(each: Iterable[Sequence[float]]) -> Json | None:
    return Spread.json(itertools.chain.from_iterable(each))


def _over_floor(measured: Json) -> float | None:
    return measured["creation"] - measured["driver_floor"] if "driver_floor" in measured else None


def _times_floors(measured: Json) -> float | None:
    """Return the creation over the later of its driver floor and its sequential reading."""
    read = measured.get("sequential_read")
    return None if read is None else float(measured["creation"] / max(measured.get("driver_floor", 0.0), read))


COLUMNS = (
    Column("starting", "starting, s", detail=True),
    Column("creation", "creation, s"),
    Column("session", "a session, s", lambda one: one["sessions"], _seconds_of_all, detail=True),
    Column("ready", "ready, s", lambda one: one["starting"] + one["creation"]),
    Column("first_run", "first run, s"),
    Column("driver_floor", "driver floor, s", rare=True, detail=True),
    Column("above_floor", "above floor, s", _over_floor, Interval.json, rare=True, detail=True),
    Column("sequential_read", "sequential read, s", rare=True, detail=True),
    Column("times_floors", "creation / floors", _times_floors, Interval.json, rare=True, detail=True),
    Column("peak_rss", "peak RSS, MiB", scale=MIB, text=whole),
    Column("gpu_memory", "GPU, MiB", summary=by_device, scale=MIB, text=whole, rare=True),
    Column("speedup", "speedup", summary=None, text="{:.2f}".format),
    Column("efficiency", "S/N", summary=None, text="{:.2f}".format, detail=True),
    Column("parallel_efficiency", "(S-1)/(N-1)", summary=None, text="{:.2f}".format, detail=True),
    Column("equal", "equal", summary=None),
    Column("pss"),
    Column("entry_bytes", of=lambda one: one["entry"]["bytes"] if one.get("entry") else None),
    Column("after_contexts", of=lambda one: one.get("details", {}).get("after_contexts"), summary=Interval.json),
)

PLAIN = "plain onnxruntime in a loop"
"""What the strategy `sequential` is, for readers."""

_USUAL_NOTES = (
    "Medians, below them the ranges. sequential: plain onnxruntime in a loop. creation: from opening the libraries "
    "until all sessions are there; ready: with the start of the process. speedup: sequential creation / creation. Peak "
    "RSS: of all processes together; pages that they share count in each. equal: the outputs have the same bits as "
    "those of the sequential sessions."
)
_DETAIL_NOTE = " S is the speedup and N the number of sessions; ready = starting + creation."
_INTERVAL_NOTES = {
    "above_floor": " driver floor: cuInit and the contexts alone, in a process beside each measurement; above floor = "
    "creation - its driver floor, below it the median's {confidence:.0%} confidence interval.",
    "times_floors": " sequential read: `cat` of the model's files, beside each measurement; creation / floors: over "
    "the later of that and the driver floor, below it the median's {confidence:.0%} confidence interval.",
}


def headline(document: Json) -> str:
    """Return one sentence for each model and its devices: who won, by how much, and over what."""
    return "\n".join(_sentence(model, rows) for model in document["models"] for rows in _by_devices(document, model))


def _by_devices(document: Json, model: Json) -> Iterator[list[Json]]:
    for _, group in itertools.groupby(_rows(document, model), lambda row: tuple(row["devices"])):
        yield list(group)


def _rows(document: Json, model: Json) -> list[Json]:
    return [row for row in document["rows"] if row["model"] == model["path"]]


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
    # One repetition has no range: it shows what is faster, not by how much another one could differ.
    once = " Measured once: --repeat shows whether that lasts." if plain["measured"] == best["measured"] == 1 else ""
    if best["creation"]["highest"] < plain["creation"]["lowest"]:
        text = f"{name} wins: created in {best_text}, {ratio:.2f} times as fast as {PLAIN} ({_seconds(plain)})."
    elif plain["creation"]["highest"] < best["creation"]["lowest"]:
        text = f"{PLAIN} wins: created in {_seconds(plain)}, {1 / ratio:.2f} times as fast as {name}."
    else:
        text = f"no clear difference: created in {best_text} by {name}, in {_seconds(plain)} by {PLAIN}."
    return f"{where}: {text}{once}"


def _seconds(row: Json) -> str:
    return f"{number(row['creation']['median'])} s"


def notes(document: Json, details: bool) -> str:
    """Explain the columns of the tables, and say what was not shared."""
    text = _USUAL_NOTES
    if details:
        text += _DETAIL_NOTE
        for key, note in _INTERVAL_NOTES.items():
            if confidences := [row[key]["confidence"] for row in document["rows"] if row[key]]:
                text += note.format(confidence=min(confidences))
    for row in document["rows"]:
        if row["not_shared"]:
            where = f"{Path(row['model']).stem} on {describe(row['devices'])}"
            text += f" Not shared, {where}: {'; '.join(row['not_shared'])}."
    return text


_BEFORE = {"nothing": (), "contexts": ("contexts there before",), "model": ("second model of the process",)}


def _labels(row: Json) -> list[Cell]:
    note = failed_text(row) or ("see below" if row["not_shared"] else "")
    return [(describe(row["devices"]), ""), (row["strategy"], note)]


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield a table for each model."""
    settings = document["settings"]
    for model in document["models"]:
        parts = [
            model_text(model),
            f"{settings['page_cache']} page cache",
            *(["without a cache entry"] if settings.get("entry") is False else []),
            *_BEFORE[settings.get("before", "nothing")],
            times_text(settings["repeat"], "repetition"),
        ]
        yield Sheet(", ".join(parts), ["devices", "strategy"], _labels, COLUMNS, _rows(document, model))


def save_plot(document: Json, path: Path) -> None:
    """Draw, for each model, the creation with its range, and the speedup over sequential.

    Raises:
        LibraryError, InvalidArgument: see `plots.plot_of`.
    """
    found = [(model, [row for row in _rows(document, model) if row["creation"]]) for model in document["models"]]
    measured = [(model, rows) for model, rows in found if rows]
    settings = document["settings"]
    how = f"{settings['page_cache']} page cache, {times_text(settings['repeat'], 'repetition')}"
    names = strategies.names()
    with plots.plot_of(document, path, 3.9 * len(measured), how) as figure:
        axes = figure.subplots(len(measured), 2, squeeze=False)
        for (left, right), (model, rows) in zip(axes, measured, strict=True):
            title = f"{model_text(model)}: creation (median, range)"
            seconds = plots.over_devices(rows, "strategy", lambda row: row["creation"])
            plots.lines(left, title, ("sessions", "creation, seconds"), seconds, names)
            speedups = plots.over_devices(
                rows, "strategy", lambda row: row["speedup"] and Spread.json([row["speedup"]])
            )
            labels = ("sessions", "times as fast as sequential")
            ideal = [(count, count) for count in sorted({len(row["devices"]) for row in rows})]
            plots.lines(right, "speedup; dotted: N sessions in the time of one", labels, speedups, names, ideal)


REPORT = Report(headline, sheets, notes, save_plot)
