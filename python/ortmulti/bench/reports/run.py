"""The report of `ortmulti bench run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval, by_device
from ortmulti.bench.reports import plots
from ortmulti.bench.reports.tables import MIB, Cell, Column, Report, Sheet, cell, failed_text, number, times_text, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]

_NOTES = (
    "Medians over the rounds, below them the ranges; of the rate and scaling the confidence intervals (95% from six "
    "rounds on). core: a pool of ortmulti's own sessions; threads: the onnxruntime package in Python threads; "
    "processes: a pool of its sessions, each in a process. rate: answers a second. scaling: of N devices, over N times "
    "one device's rate in the same round. Latency counts from when a request is submitted, with open loops from when "
    "it was to arrive."
)
_CEILING_NOTE = (
    " ceiling: the rate where the model does nothing, on the CPU, with as many sessions and the same clients: a rate "
    "near it is the clients' own."
)
_DETAIL_NOTES = (
    " ratio: to the first variant's rate in the same round. CPU: processor time of all processes. asked late: how late "
    "the clients were with 99% of the requests."
)


def notes(document: Json, details: bool) -> str:
    """Explain the columns of the tables."""
    return _NOTES + _CEILING_NOTE * any(row["ceiling"] for row in document["rows"]) + _DETAIL_NOTES * details


def _rate(row: Json) -> Cell:
    text, interval = cell(row["throughput"])
    return (text, f"of {number(row['offered']['median'])}") if row["offered"] else (text, interval)


def _within(field: str, key: str) -> Callable[[Json], float | None]:
    """Return what a measurement's summary of latencies says, if it has one."""
    return lambda one: one[field][key] if one.get(field) else None


def _cores(one: Json) -> float | None:
    return one["cpu_seconds"] and one["cpu_seconds"] / one["window"]  # type: ignore[no-any-return]


_MS: Any = {"scale": 1e-3, "rare": True}
COLUMNS = (
    Column("throughput", "rate, 1/s", None, Interval.json, _rate),
    Column("ceiling", "ceiling, 1/s", summary=None, rare=True),
    Column("scaling", "scaling", summary=None, rare=True),
    Column("over_first", "ratio", summary=None, rare=True, detail=True),
    Column("p50", "p50, ms", _within("latency", "p50"), **_MS),
    Column("p95", of=_within("latency", "p95")),
    Column("p99", "p99, ms", _within("latency", "p99"), **_MS),
    Column("p999", "p99.9, ms", _within("latency", "p999"), **_MS, detail=True),
    Column("cpu_per_request", "CPU, ms/request", **_MS, detail=True),
    Column("cores", "cores", _cores, rare=True, detail=True),
    Column("pss", "memory, MiB", scale=MIB, text=whole, rare=True),
    Column("gpu_memory", "GPU, MiB", summary=by_device, scale=MIB, text=whole, rare=True),
    Column("lag", "asked late, ms", _within("lag", "p99"), **_MS, detail=True),
    Column("offered"),
)


def _groups(document: Json, rows: Sequence[Json]) -> dict[str, list[Json]]:
    """Return the rows of each model and batch size, by their name."""
    names = {model["path"]: model["name"] for model in document["models"]}
    groups: dict[str, list[Json]] = {}
    for row in rows:
        groups.setdefault(f"{names[row['model']]}, batch {row['batch']}", []).append(row)
    return groups


def _labels(row: Json) -> list[Cell]:
    note = f"{row['unanswered']} unanswered" if row["unanswered"] else failed_text(row)
    return [(describe(row["devices"]), ""), (row["variant"], note), (row["load"], "")]


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield a table for each model and batch size."""
    settings = document["settings"]
    how = (
        f"inputs on the {settings['inputs']}, outputs on the {settings['outputs']}, "
        f"{times_text(settings['rounds'], 'round')} of {settings['seconds']:g} s"
    )
    for name, rows in _groups(document, document["rows"]).items():
        yield Sheet(
            f"{name}, {how}", ["devices", "variant", "load"], _labels, COLUMNS, rows, lambda row: bool(row["errors"])
        )


def headline(document: Json) -> str:
    """Return one sentence for each model and batch size, on the most devices: who won, by how much, and over what."""
    measured = [row for row in document["rows"] if row["kind"] == "closed" and row["throughput"]]
    return "\n".join(f"{name}, {_sentence(rows)}." for name, rows in _groups(document, measured).items())


def _sentence(rows: Sequence[Json]) -> str:
    most = max(len(row["devices"]) for row in rows)
    on_most = [row for row in rows if len(row["devices"]) == most]
    best, *others = sorted(on_most, key=lambda row: -float(row["throughput"]["median"]))
    rate = f"{number(best['throughput']['median'])} answers a second"
    where = f"on {describe(best['devices'])}: {best['variant']}"
    if not others:
        return f"{where} gives {rate}"
    following = others[0]
    ratio = best["throughput"]["median"] / following["throughput"]["median"]
    compared = f"{ratio:.2f} times as many as {following['variant']}, the next one"
    if best["measured"] == following["measured"] == 1:  # no interval: another round could end otherwise
        return f"{where} gives {rate}, {compared}, measured once: --repeat 6 shows whether that is certain"
    if best["throughput"]["low"] <= following["throughput"]["high"]:
        return f"{where} gives {rate}, with no clear difference from {following['variant']}"
    return f"{where} wins with {rate}, {compared}"


def save_plot(document: Json, path: Path) -> None:
    """Draw a result, for each model and batch size.

    The left plot has the closed loop's rate over the number of devices. The right one has the latency over the load or,
    without open loops, the rate over N times one device's.

    Raises:
        LibraryError, InvalidArgument: see `plots.plot_of`.
    """
    groups = _groups(document, [row for row in document["rows"] if row["measured"]])
    settings = document["settings"]
    how = f"{times_text(settings['rounds'], 'round')} of {settings['seconds']:g} s, inputs on the {settings['inputs']}"
    variants = list(dict.fromkeys(row["variant"] for row in document["rows"]))

    with plots.plot_of(document, path, 3.9 * len(groups), how) as figure:
        axes = figure.subplots(len(groups), 2, squeeze=False)
        for (left, right), (name, rows) in zip(axes, groups.items(), strict=True):
            closed = [row for row in rows if row["kind"] == "closed"]
            rates, scalings = (
                plots.over_devices(closed, "variant", lambda row, key=key: row[key])  # type: ignore[misc]
                for key in ("throughput", "scaling")
            )
            best = max((points[0][1]["median"] for points in rates.values() if points[0][0] == 1), default=None)
            counts = sorted({len(row["devices"]) for row in rows})
            ideal = [] if best is None else [(count, best * count) for count in counts]
            labels = ("devices", "answers a second, closed loop")
            plots.lines(left, f"{name}: answers a second (median, range)", labels, rates, variants, ideal)
            if opened := [row for row in rows if row["kind"] == "open" and row["p50"] is not None]:
                _draw_latency(right, opened, variants)
            else:
                title, flat = "rate over N times one device's, same round", [(count, 1.0) for count in counts]
                plots.lines(right, title, ("devices", "scaling"), scalings, variants, flat)


def _draw_latency(axes: Axes, rows: Sequence[Json], variants: Sequence[str]) -> None:
    most = max(len(row["devices"]) for row in rows)
    title = f"latency, {times_text(most, 'device')}: p50 filled, p99 hollow and dashed"
    plots.title_axes(axes, title, "requests offered a second", "milliseconds")
    axes.set_yscale("log")
    on_most = sorted((row for row in rows if len(row["devices"]) == most), key=lambda row: row["offered"]["median"])
    for name in dict.fromkeys(row["variant"] for row in on_most):
        mine = [row for row in on_most if row["variant"] == name]
        rates = [row["offered"]["median"] for row in mine]
        for key, line, face in (("p50", "-", "full"), ("p99", "--", "none")):
            seconds = [row[key]["median"] * 1000 for row in mine]
            axes.plot(rates, seconds, linestyle=line, fillstyle=face, **plots.line_style(name, variants))
    axes.set_xlim(left=0)


REPORT = Report(headline, sheets, notes, save_plot)
