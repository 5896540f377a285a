"""Plots of `ortmulti bench run`: throughput over the number of devices, latency over the load. Loads matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench.create.plots import COLOURS, OTHER_COLOURS, caption, clean, new_figure
from ortmulti.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]

_COLOURS = {"core": COLOURS["shared"], "threads": COLOURS["threads"], "processes": COLOURS["processes"]}
_MARKERS = ("o", "s", "^", "D", "P", "X", "v")


def save_run_plot(document: Json, path: Path) -> None:
    """Draw a result, for each model and batch size.

    The left plot has the closed loop's rate over the number of devices. The right one has the latency over the load or,
    without open loops, the rate over N times one device's.

    Args:
        document: the result.
        path: the image to write; its suffix chooses the format (.png, .svg, .pdf).

    Raises:
        LibraryError: matplotlib is not installed.
        InvalidArgument: matplotlib does not write such files, or nothing was measured.
    """
    measured = [row for row in document["rows"] if row["measured"]]
    if not measured:
        raise InvalidArgument("no measurement succeeded: there is nothing to plot")
    names = {model["path"]: model["name"] for model in document["models"]}
    groups: dict[tuple[str, int], list[Json]] = {}
    for row in measured:
        groups.setdefault((row["model"], row["batch"]), []).append(row)
    figure = new_figure(11, 0.9 + 3.9 * len(groups), path)
    axes = figure.subplots(len(groups), 2, squeeze=False, width_ratios=(1, 1))
    variants = list(dict.fromkeys(row["variant"] for row in document["rows"]))
    look = {name: _look(name, number) for number, name in enumerate(variants)}
    for (left, right), ((model, batch), rows) in zip(axes, groups.items(), strict=True):
        closed = [row for row in rows if row["kind"] == "closed"]
        opened = [row for row in rows if row["kind"] == "open" and row["p50"] is not None]
        _draw_rate(left, closed, look, f"{names[model]}, batch {batch}")
        if opened:
            _draw_latency(right, opened, look)
        else:
            _draw_scaling(right, closed, look)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False)
    settings = document["settings"]
    how = f"{settings['rounds']} rounds of {settings['seconds']:g} s, inputs on the {settings['inputs']}"
    figure.supxlabel(caption(document, how), fontsize=8, color="#555555")
    write_atomically(path, lambda file: figure.savefig(file, dpi=150))


def _look(name: str, number: int) -> dict[str, Any]:
    others = (*OTHER_COLOURS, COLOURS["native"], COLOURS["sequential"])
    return {
        "color": _COLOURS.get(name, others[number % len(others)]),
        "marker": _MARKERS[number % len(_MARKERS)],
        "linewidth": 1.8,
    }


def _by_variant(rows: Sequence[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(row)
    return found


def _draw_rate(axes: Axes, rows: Sequence[Json], look: Mapping[str, Any], title: str) -> None:
    axes.set_title(f"{title}: answers a second (median, range)", fontsize=10, loc="left")
    axes.set_xlabel("devices")
    axes.set_ylabel("answers a second, closed loop")
    clean(axes)
    counts = sorted({len(row["devices"]) for row in rows})
    for name, mine in _by_variant(rows).items():
        points = sorted(mine, key=lambda row: len(row["devices"]))
        spreads = [row["throughput"] for row in points]
        medians = [spread["median"] for spread in spreads]
        below = [spread["median"] - spread["lowest"] for spread in spreads]
        above = [spread["highest"] - spread["median"] for spread in spreads]
        places = [len(row["devices"]) for row in points]
        axes.errorbar(places, medians, yerr=[below, above], capsize=3, elinewidth=1, label=name, **look[name])
    ones = [row["throughput"]["median"] for row in rows if len(row["devices"]) == 1]
    if ones:
        best = max(ones)
        axes.plot([1, counts[-1]], [best, best * counts[-1]], linestyle=":", color="#999999", zorder=1)
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)


def _draw_scaling(axes: Axes, rows: Sequence[Json], look: Mapping[str, Any]) -> None:
    axes.set_title("rate over N times one device's, same round", fontsize=10, loc="left")
    axes.set_xlabel("devices")
    axes.set_ylabel("scaling")
    clean(axes)
    scaled = [row for row in rows if row["scaling"] is not None]
    if not scaled:
        axes.text(0.5, 0.5, "needs one device and more", transform=axes.transAxes, ha="center", color="#555555")
        return
    for name, mine in _by_variant(scaled).items():
        points = sorted((len(row["devices"]), row["scaling"]["median"]) for row in mine)
        axes.plot([1, *(count for count, _ in points)], [1.0, *(share for _, share in points)], **look[name])
    axes.axhline(1.0, linestyle=":", color="#999999", zorder=1)
    axes.set_xticks(sorted({1, *(len(row["devices"]) for row in scaled)}))
    axes.set_ylim(bottom=0)


def _draw_latency(axes: Axes, rows: Sequence[Json], look: Mapping[str, Any]) -> None:
    most = max(len(row["devices"]) for row in rows)
    devices = f"{most} device{'s'[: most > 1]}"
    axes.set_title(
        f"latency from the intended arrival, {devices}: p50 filled, p99 hollow and dashed", fontsize=10, loc="left"
    )
    axes.set_xlabel("requests offered a second")
    axes.set_ylabel("milliseconds")
    axes.set_yscale("log")
    clean(axes)
    for name, mine in _by_variant([row for row in rows if len(row["devices"]) == most]).items():
        points = sorted(mine, key=lambda row: float(row["offered"]["median"]))
        rates = [row["offered"]["median"] for row in points]
        for key, line, face in (("p50", "-", "full"), ("p99", "--", "none")):
            seconds = [row[key]["median"] * 1000 for row in points]
            axes.plot(rates, seconds, linestyle=line, fillstyle=face, **look[name])
    axes.set_xlim(left=0)
