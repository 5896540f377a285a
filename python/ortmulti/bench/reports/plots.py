"""What the plots of measurements have in common. Loads matplotlib."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ortmulti._runtime.regular_file import write_atomically
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
    "core": "#0072B2",
}
OTHER_COLOURS = ("#CC79A7", "#D55E00", "#009E73", "#7f7f7f")
_MARKERS = ("o", "s", "^", "D", "P", "X", "v")


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


def line_style(name: str, names: Sequence[str] = tuple(COLOURS)) -> dict[str, Any]:
    """Return how `Axes.plot` draws a strategy or a variant of these `names`."""
    place = names.index(name) if name in names else sum(map(ord, name))
    colour = COLOURS.get(name, OTHER_COLOURS[place % len(OTHER_COLOURS)])
    return {"marker": _MARKERS[place % len(_MARKERS)], "color": colour, "linewidth": 1.8, "zorder": 2}


@contextlib.contextmanager
def plot_of(document: Json, path: Path, height: float, how: str, **legend: Any) -> Iterator[Figure]:
    """Yield an empty figure. After the block it gets a legend, a caption with `how`, and is written to `path`.

    Raises:
        LibraryError: matplotlib is not installed.
        InvalidArgument: it does not write such files, or nothing was measured.
    """
    if not any(row["measured"] for row in document["rows"]):
        raise InvalidArgument("no measurement succeeded: there is nothing to plot")
    figure = new_figure(11, 0.9 + height, path)
    yield figure
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(5, len(labels)), frameon=False, **legend)
    figure.supxlabel(caption(document, how), fontsize=8, color="#555555")
    write_atomically(path, lambda file: figure.savefig(file, dpi=150))


def lines(
    axes: Axes,
    title: str,
    labels: tuple[str, str],
    rows: Iterable[Json],
    by: str,
    figure: Callable[[Json], Json | None],
    names: Sequence[str],
    ideal: Sequence[tuple[float, float]] = (),
) -> None:
    """Draw a figure of rows over their number of devices: a line through the medians, with the ranges.

    Args:
        axes: where.
        title: of the axes.
        labels: of x and y.
        rows: those of a result.
        by: the field whose value names a row's line.
        figure: returns a row's spread; None if it has none.
        names: of all lines, in the legend's order.
        ideal: points of a dotted line.
    """
    title_axes(axes, title, *labels)
    found = sorted(((len(row["devices"]), row[by], at) for row in rows if (at := figure(row))), key=lambda one: one[0])
    if not found:
        axes.text(0.5, 0.5, "nothing to compare with", transform=axes.transAxes, ha="center", color="#555555")
        return
    for name in names:
        points = [(count, at["median"], at["lowest"], at["highest"]) for count, of, at in found if of == name]
        if points:
            places, medians, lowest, highest = np.array(points, float).T
            style = {"capsize": 3, "elinewidth": 1, **line_style(name, names)}
            axes.errorbar(places, medians, yerr=[medians - lowest, highest - medians], label=name, **style)
    axes.plot([x for x, _ in ideal], [y for _, y in ideal], linestyle=":", color="#999999", zorder=1)
    axes.set_xticks(sorted({count for count, *_ in found}))
    axes.set_ylim(bottom=0)


def title_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the texts of axes, and their grid."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    clean(axes)


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
