"""Plots of a comparison: creation seconds and speedup over the number of sessions. Loads matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench import strategies
from ortmulti.bench.measure.devices import describe
from ortmulti.errors import InvalidArgument, LibraryError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = Mapping[str, Any]

# Okabe and Ito's colours, which people with any colour vision tell apart, and which stay apart in grey.
COLOURS = {
    "sequential": "#7f7f7f",
    "threads": "#E69F00",
    "processes": "#56B4E9",
    "native": "#009E73",
    "shared": "#0072B2",
}
OTHER_COLOURS = ("#CC79A7", "#D55E00")
_MARKERS = {"sequential": "o", "threads": "s", "processes": "^", "native": "D", "shared": "P"}


def save_creation_plot(document: Json, path: Path) -> None:
    """Draw a comparison: for each model the creation with its range, and the speedup over sequential.

    Args:
        document: the comparison's result.
        path: the image to write; its suffix chooses the format (.png, .svg, .pdf).

    Raises:
        LibraryError: matplotlib is not installed.
        InvalidArgument: matplotlib does not write such files, or nothing was measured.
    """
    measured = [row for row in document["rows"] if row["creation"] is not None]
    if not measured:
        raise InvalidArgument("no measurement succeeded: there is nothing to plot")
    models = [model for model in document["models"] if any(row["model"] == model["path"] for row in measured)]
    figure = new_figure(11, 0.9 + 3.9 * len(models), path)
    axes = figure.subplots(len(models), 2, squeeze=False, width_ratios=(3, 2))
    for (bars, lines), model in zip(axes, models, strict=True):
        rows = [row for row in measured if row["model"] == model["path"]]
        _draw_creation(bars, rows, _model_text(model))
        _draw_speedup(lines, rows)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    settings = document["settings"]
    how = f"{settings['page_cache']} page cache, {settings['repeat']} repetitions"
    figure.supxlabel(caption(document, how), fontsize=8, color="#555555")
    write_atomically(path, lambda file: figure.savefig(file, dpi=150))


def new_figure(width: float, height: float, path: Path) -> Figure:
    """Return an empty figure of that many inches, which can be saved as `path`.

    Raises:
        LibraryError: matplotlib is not installed.
        InvalidArgument: it does not write such files.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LibraryError('plots need matplotlib: pip install "ortmulti[plot]"') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if path.suffix.lstrip(".").lower() not in figure.canvas.get_supported_filetypes():
        raise InvalidArgument(f"matplotlib does not write {path.suffix or 'files without a suffix'}; use .png or .svg")
    return figure


def _model_text(model: Json) -> str:
    size = model["bytes"] + model["external_bytes"]
    return f"{model['name']}, {size / 1e9:.2f} GB" if size >= 1e9 else f"{model['name']}, {size / 1e6:.3g} MB"


def _names(rows: Sequence[Json]) -> list[str]:
    present = {row["strategy"] for row in rows}
    return [name for name in strategies.names() if name in present]


def _colour(name: str) -> str:
    return COLOURS.get(name, OTHER_COLOURS[sum(map(ord, name)) % len(OTHER_COLOURS)])


def line_style(name: str) -> dict[str, Any]:
    """Return how `Axes.plot` draws a strategy."""
    return {"marker": _MARKERS.get(name, "o"), "color": _colour(name), "linewidth": 1.8, "zorder": 2}


def _draw_creation(axes: Axes, rows: Sequence[Json], title: str) -> None:
    device_sets = list(dict.fromkeys(tuple(row["devices"]) for row in rows))
    names = _names(rows)
    width = 0.84 / len(names)
    highest = max(row["creation"]["highest"] for row in rows)
    for number, name in enumerate(names):
        mine = {tuple(row["devices"]): row["creation"] for row in rows if row["strategy"] == name}
        places = [place for place, devices in enumerate(device_sets) if devices in mine]
        spreads = [mine[device_sets[place]] for place in places]
        medians = [spread["median"] for spread in spreads]
        below = [spread["median"] - spread["lowest"] for spread in spreads]
        above = [spread["highest"] - spread["median"] for spread in spreads]
        centres = [place + (number - (len(names) - 1) / 2) * width for place in places]
        axes.bar(centres, medians, width * 0.92, color=_colour(name), label=name, zorder=2)
        axes.errorbar(
            centres, medians, yerr=[below, above], fmt="none", ecolor="#222222", elinewidth=1, capsize=3, zorder=3
        )
        for centre, spread in zip(centres, spreads, strict=True):
            text = f"{spread['median']:.2f}" if highest >= 0.5 else f"{spread['median']:.3f}"
            axes.annotate(
                text, (centre, spread["highest"]), (0, 4), textcoords="offset points", ha="center", fontsize=8
            )
    axes.set_xticks(range(len(device_sets)), [describe(devices) for devices in device_sets])
    axes.set_ylim(0, highest * 1.15)
    axes.set_ylabel("creation, seconds")
    axes.set_title(f"{title}: creation (median, range)", fontsize=10, loc="left")
    clean(axes)


def _draw_speedup(axes: Axes, rows: Sequence[Json]) -> None:
    compared = [row for row in rows if row["speedup"] is not None]
    counts = sorted({len(row["devices"]) for row in compared})
    axes.set_title("speedup over sequential creation", fontsize=10, loc="left")
    axes.set_xlabel("sessions")
    axes.set_ylabel("times as fast as sequential")
    clean(axes)
    if not compared:
        axes.text(0.5, 0.5, "needs the sequential strategy", transform=axes.transAxes, ha="center", color="#555555")
        return
    axes.plot(counts, counts, linestyle=":", color="#999999", zorder=1)
    axes.annotate(
        "N sessions in the time of one",
        (counts[-1], counts[-1]),
        (-10, 2),
        textcoords="offset points",
        ha="right",
        color="#777777",
    )
    for name in _names(compared):
        points = sorted((len(row["devices"]), row["speedup"]) for row in compared if row["strategy"] == name)
        axes.plot(*zip(*points, strict=True), **line_style(name))
    axes.set_xticks(counts)
    axes.set_ylim(0, 1.1 * max(counts[-1], *(row["speedup"] for row in compared)))


def clean(axes: Axes, axis: Literal["x", "y"] = "y") -> None:
    """The usual grid of one axis, without a frame."""
    axes.grid(axis=axis, zorder=0, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def caption(document: Json, how: str) -> str:
    """Return a line on where, with what and how it was measured, and when."""
    releases = document["releases"]
    parts = [
        machine_text(document["machine"]),
        *(f"{name} {releases[name]}" for name in ("onnxruntime", "ortmulti") if releases[name]),
        f"Python {releases['python']}",
        f"{how}, {document['created'][:10]}",
    ]
    return "; ".join(parts)


def machine_text(machine: Json) -> str:
    """Return the machine in a few words: its GPUs with the driver, its processor and the cores that may be used."""
    cpu, gpus, driver = machine["cpu"], machine.get("gpus") or [], machine.get("driver")
    names = Counter(gpu["name"] for gpu in gpus)
    parts = [f"{count} x {name}" for name, count in names.items()]
    parts += [f"driver {driver.get('version')}"] if gpus and driver else []
    return ", ".join([*parts, f"{cpu.get('model') or cpu['architecture']}, {cpu['usable_physical_cores']} cores"])
