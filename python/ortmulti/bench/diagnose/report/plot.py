"""The figures of a diagnosis's page: each way's trace, one run's timeline, how the ways scale. Loads matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.bench.diagnose.causes import cause_of, ordered
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.files import printable
from ortmulti.bench.reports.plots import clean, line_style, new_figure

from . import view
from .view import Json, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = tuple[str, int]

_LONGEST_NAME = 44
_HATCH = "////"
# A timeline of more spans is an image in the page: as shapes they would be megabytes.
_MOST_SHAPES = 2_000

# Text, surface and grid of the page's two schemes; `page.css` has the same.
_SCHEMES = (("#171a21", "#ffffff", "#d9dde4"), ("#e8ebf1", "#191d25", "#343c4a"))


def page_figures(document: Json) -> dict[str, list[bytes]]:
    """Draw the figures of the page that the document has something for: "traces", "timeline" and "scaling".

    Each is an SVG document in the light and one in the dark scheme. `LibraryError`: matplotlib is not installed.
    """
    parts = _parts(view.traces(document), view.default_run(document))
    return {name: [_svg(draw, height, *scheme) for scheme in _SCHEMES] for name, (height, draw) in parts.items()}


def _parts(found: Sequence[Trace], run: Json | None) -> dict[str, tuple[float, Callable[[Axes], None]]]:
    """Return the parts that there is something for: each one's height in inches, and what draws it."""
    parts: dict[str, tuple[float, Callable[[Axes], None]]] = {}
    if found:
        parts["traces"] = 0.34 * len(found) + 0.9, lambda axes: _draw_traces(axes, found)
        parts["scaling"] = 3.6, lambda axes: _draw_scaling(axes, found)
    if run:
        rows = _rows(run)
        parts["timeline"] = 0.36 * len(rows) + 0.9, lambda axes: _draw_timeline(axes, rows)
    return parts


def _svg(draw: Callable[[Axes], None], height: float, text: str, surface: str, grid: str) -> bytes:
    figure = new_figure(11, height, Path("page.svg"))
    from matplotlib import rc_context

    settings: Any = {"grid.color": grid, "svg.fonttype": "none", "svg.hashsalt": "page"}
    settings |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), text)
    settings |= dict.fromkeys(("axes.facecolor", "savefig.facecolor"), surface)
    with rc_context(settings), io.BytesIO() as file:
        draw(figure.subplots())
        figure.savefig(file, format="svg", dpi=150, metadata={"Date": None})
        return file.getvalue()


def _draw_traces(axes: Axes, found: Sequence[Trace]) -> None:
    longest = max(trace.wall for trace in found)
    for place, trace in enumerate(found):
        left = 0.0
        for cause in view.causes_of([trace]):
            length = trace.causes[cause]
            axes.barh(place, length, 0.72, left, linewidth=0.4, **_look(cause))
            left += length
        axes.annotate(
            seconds_text(trace.wall), (left, place), (5, 0), textcoords="offset points", va="center", fontsize=9
        )
    names = [_plain(f"{trace.name}, {view.devices_text(trace.devices)}") for trace in found]
    axes.set_yticks(range(len(found)), names)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(0, longest * 1.1)
    _finish(axes)


def _draw_timeline(axes: Axes, rows: Mapping[Row, Sequence[Json]]) -> None:
    as_image = sum(map(len, rows.values())) > _MOST_SHAPES
    places = [1.5 * number for number in range(len(rows))]
    for place, spans in zip(places, rows.values(), strict=True):
        for cause in ordered({span["cause"] for span in spans}):
            ranges = [(span["start"], span["end"] - span["start"]) for span in spans if span["cause"] == cause]
            bars = axes.broken_barh(ranges, (place + 0.08, 0.84), linewidth=0.3, **_look(cause))
            bars.set_rasterized(as_image)
    labels = [f"{_plain(device or 'process')}, thread {thread}" for device, thread in rows]
    axes.set_yticks([place + 0.5 for place in places], labels, fontsize=8)
    axes.set_ylim(1.5 * len(rows), -0.4)
    axes.set_xlim(left=0)
    _finish(axes)


def _draw_scaling(axes: Axes, found: Sequence[Trace]) -> None:
    warm = [trace for trace in found if trace.warm] or found
    points: dict[str, list[tuple[int, float]]] = {}
    for trace in warm:
        points.setdefault(trace.way, []).append((len(trace.devices), trace.wall))
    for way, walls in points.items():
        axes.plot(*zip(*sorted(walls), strict=True), **line_style(way), label=_plain(way))
    counts = sorted({len(trace.devices) for trace in warm})
    least = min(trace.wall for trace in warm if len(trace.devices) == counts[0])
    axes.axhline(least, linestyle="--", linewidth=1, color="#888888", label=f"as long as on {counts[0]}")
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices", fontsize=9)
    axes.set_ylabel("seconds", fontsize=9)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    clean(axes)


def _finish(axes: Axes) -> None:
    clean(axes, "x")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds", fontsize=9)


def _look(cause: str) -> dict[str, Any]:
    drawn = cause_of(cause)
    if drawn.hatched:
        return {"facecolor": drawn.colour, "edgecolor": "#555555", "hatch": _HATCH}
    return {"facecolor": drawn.colour, "edgecolor": drawn.colour}


def _rows(run: Json) -> dict[Row, list[Json]]:
    """Return the spans of each device and thread. Work for a session without a device is shown with the session's."""
    rows: dict[Row, list[Json]] = {}
    devices = dict(enumerate(run["devices"]))
    for span in sorted(run["spans"], key=lambda span: span["start"]):
        device = span["device"] or devices.get(span.get("session"), "")
        rows.setdefault((device, span["thread"]), []).append(span)
    places = {device: place for place, device in devices.items()}
    return dict(sorted(rows.items(), key=lambda row: (places.get(row[0][0], -1), row[1][0]["start"])))


def _plain(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name as matplotlib is to write it: not too long, nothing that fonts do not have, and no formula."""
    text = printable(text)
    return (text if len(text) <= longest else f"{text[: longest - 1]}…").replace("$", r"\$")
