"""The report of `ortmulti bench repository`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.bench.reports import plots
from ortmulti.bench.reports.tables import MIB, Cell, Column, Report, Sheet, mebibytes_text, number, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Json = Mapping[str, Any]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
"""The latencies of a row, with the share of the requests that do not exceed them."""

_NOTES = (
    "Milliseconds from the planned arrival to the answer; of several rounds the medians, below them the ranges. found "
    "awake: requests whose model was awake when they were sent. misses: the share of the others. awake: a repository "
    "with room for all models. onnxruntime: sessions created on demand, least recently used ones closed, with the "
    "budget for the files' bytes. simulated: the repository's own policy with the measured times of a run and a wake. "
    "left: requests without an answer when the measurement ended. used: the most of the budget that was seen in use."
)


def headline(document: Json) -> str:
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


_STATES = {"awake": "found awake", "asleep": "found asleep"}


COLUMNS = (
    Column("misses", "misses, %", scale=0.01),
    Column("wakes", "wakes"),
    Column("evictions", "evictions"),
)


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield the tables of latencies, of the models' states, and of bursts."""
    settings = document["settings"]
    rows = [row for row in document["rows"] if row["measured"]]
    yield Sheet(
        f"budget {mebibytes_text(settings['budget'])} MiB, {settings['trace']}",
        ["experiment", "requests"],
        lambda row: [(row["experiment"], ""), (_STATES.get(row["group"], row["group"]), "")],
        [Column(name, f"{name}, ms", scale=1e-3) for name in QUANTILES],
        [
            {"experiment": row["experiment"], "group": group, **latency}
            for row in rows
            for group, latency in row["latency"].items()
            if latency is not None
        ],
    )

    def experiment(row: Json) -> list[Cell]:
        return [(row["experiment"], "")]

    def measured(key: str) -> Callable[[Json], Any]:
        return lambda row: None if row["experiment"] == "simulated" else row[key]

    counts = {"different": "differ", "failed": "failed", "unanswered": "left"}
    columns = [
        Column("requests", "requests"),
        *COLUMNS,
        Column("used", "used, MiB", scale=MIB, text=whole),
        *(Column(key, head, show=measured(key)) for key, head in counts.items()),
    ]
    yield Sheet("", ["experiment"], experiment, columns, rows)
    if bursts := [row for row in rows if row["burst_first"]]:
        columns = [
            Column("burst_first", "first answer, ms", scale=1e-3),
            Column("burst_over", "beyond wake and run, ms", scale=1e-3, text="{:.2f}".format),
        ]
        yield Sheet("bursts", ["experiment"], experiment, columns, bursts)


def save_plot(document: Json, path: Path) -> None:
    """Draw each experiment's latencies over time and, below, which models were awake, of the last round."""
    last = {one["experiment"]: one for one in document["measurements"] if "points" in one}
    names = [model["name"] for model in document["models"]]
    height = len(last) * (3 + 0.12 * len(names))
    how = f"budget {mebibytes_text(document['settings']['budget'])} MiB"
    with plots.plot_of(document, path, height, how, markerscale=5) as figure:
        axes = figure.subplots(2 * len(last), 1, squeeze=False, sharex=True, height_ratios=[2, 1] * len(last))[:, 0]
        for (name, one), above, below in zip(last.items(), axes[::2], axes[1::2], strict=True):
            _draw(name, one, above, below, names)
        axes[-1].set_xlabel("seconds")


def _draw(name: str, one: Json, above: Axes, below: Axes, names: Sequence[str]) -> None:
    points = one["points"]
    for state, text, colour in (("A", "awake", plots.COLOURS["shared"]), ("-", "asleep", plots.OTHER_COLOURS[1])):
        chosen = [i for i, found in enumerate(points["awake"]) if found == state]
        milliseconds = [points["seconds"][i] * 1e3 for i in chosen]
        above.plot([points["at"][i] for i in chosen], milliseconds, ".", ms=2, color=colour, label=f"found {text}")
    above.set_yscale("log")
    plots.title_axes(above, f"{name}: latency from the planned arrival", "", "latency, ms")
    times = [moment for moment, _ in one["states"]]
    times.append(times[-1] + 0.01)
    awake = [[state[i] == "A" for _, state in one["states"]] for i in range(len(names))]
    below.pcolormesh(times, range(len(names) + 1), awake, cmap="Blues", vmin=0, vmax=1.4, rasterized=True)
    below.invert_yaxis()
    below.set_yticks([i + 0.5 for i in range(len(names))], names, fontsize=6)
    below.set_title("awake (dark)", fontsize=8, loc="left")


REPORT = Report(headline, sheets, lambda _document, _details: _NOTES, save_plot)
