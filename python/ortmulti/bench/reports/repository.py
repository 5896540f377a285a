"""The report of `ortmulti bench repository`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench.create.plots import COLOURS, OTHER_COLOURS, caption, clean, new_figure
from ortmulti.bench.create.tables import number, plain_table, spread_cell, two_lines
from ortmulti.bench.measure import repository

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MIB = 1 << 20

NOTES = (
    "Milliseconds from the planned arrival to the answer; of several rounds the medians, below them the ranges. found "
    "awake: requests whose model was awake when they were sent. misses: the share of the others. awake: a repository "
    "with room for all models. onnxruntime: sessions created on demand, least recently used ones closed, with the "
    "budget for the files' bytes. simulated: the repository's own policy with the measured times of a run and a wake. "
    "left: requests without an answer when the measurement ended. used: the most of the budget that was seen in use."
)


def headline(document: Mapping[str, Any]) -> str:
    """Return what was measured, and the latencies of the repository."""
    settings = document["settings"]
    rate = f", {number(settings['rate'])} requests a second" if settings["rate"] else ""
    fitting = f" ({settings['fitting']} fit)" if "fitting" in settings else ""
    where = f"{len(document['models'])} models{fitting} on {settings['device']}{rate}"
    rows = {row["experiment"]: row for row in document["rows"] if row["measured"]}
    parts = []
    if "repository" in rows:
        for name in ("p50", "p99"):
            measured = rows["repository"]["latency"]["all"][name]["median"] * 1e3
            text = f"{name} {number(measured)} ms"
            if "simulated" in rows:
                text += f" (predicted {number(rows['simulated']['latency']['all'][name]['median'] * 1e3)})"
            parts.append(text)
    skipped = [f"{row['experiment']}: skipped, {row['skipped']}" for row in document["rows"] if row["skipped"]]
    return "\n".join([f"{where}: {', '.join(parts) or 'nothing was measured'}.", *skipped])


def tables(document: Mapping[str, Any], _console: Console) -> Iterator[Table]:
    """Yield the tables of latencies, of the models' states, and of bursts."""
    rows = [row for row in document["rows"] if row["measured"]]
    title = f"budget {document['settings']['budget'] / _MIB:.0f} MiB, {document['settings']['trace']}"
    quantiles = [f"{name}, ms" for name in repository.QUANTILES]
    table = plain_table(title, ["experiment", "requests"], quantiles)
    for row in rows:
        for group, latency in row["latency"].items():
            if latency is not None:
                cells = [spread_cell(latency[name], 1e-3) for name in repository.QUANTILES]
                text = {"awake": "found awake", "asleep": "found asleep"}.get(group, group)
                table.add_row(row["experiment"] if group == "all" else "", text, *two_lines(cells))
    yield table
    columns = ["requests", "misses, %", "wakes", "evictions", "used, MiB", "differ", "failed", "left"]
    table = plain_table("", ["experiment"], columns)
    for row in rows:
        counts = [(f"{row[name]}", "") for name in ("different", "failed", "unanswered")]
        cells = [
            (f"{row['requests']}", ""),
            spread_cell(row["misses"], 0.01),
            spread_cell(row["wakes"]),
            spread_cell(row["evictions"]),
            (f"{row['used'] / _MIB:.0f}", ""),
            *(counts if row["experiment"] != "simulated" else [("-", "")] * 3),
        ]
        table.add_row(row["experiment"], *two_lines(cells))
    yield table
    if any(row["burst_first"] for row in rows):
        table = plain_table("bursts", ["experiment"], ["first answer, ms", "beyond wake and run, ms"])
        for row in rows:
            if row["burst_first"]:
                cells = [spread_cell(row["burst_first"], 1e-3), spread_cell(row["burst_over"], 1e-3, "{:.2f}".format)]
                table.add_row(row["experiment"], *two_lines(cells))
        yield table


def save_plot(document: Mapping[str, Any], path: Path) -> None:
    """Draw each experiment's latencies over time and, below, which models were awake, of the last round."""
    last = {one["experiment"]: one for one in document["measurements"] if "points" in one}
    names = [model["name"] for model in document["models"]]
    figure = new_figure(11, 0.9 + len(last) * (3 + 0.12 * len(names)), path)
    axes = figure.subplots(2 * len(last), 1, squeeze=False, sharex=True, height_ratios=[2, 1] * len(last))[:, 0]
    for (name, one), above, below in zip(last.items(), axes[::2], axes[1::2], strict=True):
        points = one["points"]
        for state, text, colour in (("A", "awake", COLOURS["shared"]), ("-", "asleep", OTHER_COLOURS[1])):
            chosen = [i for i, found in enumerate(points["awake"]) if found == state]
            milliseconds = [points["seconds"][i] * 1e3 for i in chosen]
            above.plot([points["at"][i] for i in chosen], milliseconds, ".", ms=2, color=colour, label=f"found {text}")
        above.set_yscale("log")
        above.set_ylabel("latency, ms")
        above.set_title(f"{name}: latency from the planned arrival", fontsize=10, loc="left")
        clean(above)
        times = [moment for moment, _ in one["states"]]
        times.append(times[-1] + 0.01)
        awake = [[state[i] == "A" for _, state in one["states"]] for i in range(len(names))]
        below.pcolormesh(times, range(len(names) + 1), awake, cmap="Blues", vmin=0, vmax=1.4, rasterized=True)
        below.invert_yaxis()
        below.set_yticks([i + 0.5 for i in range(len(names))], names, fontsize=6)
        below.set_title("awake (dark)", fontsize=8, loc="left")
    axes[-1].set_xlabel("seconds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, markerscale=5)
    settings = document["settings"]
    figure.supxlabel(caption(document, f"budget {settings['budget'] / _MIB:.0f} MiB"), fontsize=8, color="#555555")
    write_atomically(path, lambda file: figure.savefig(file, dpi=150))
