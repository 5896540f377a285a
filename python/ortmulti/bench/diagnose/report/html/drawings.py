"""The page's drawings that need no script: SVG whose lengths are per cent, so that text in it keeps its size."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ortmulti.bench.create.plots import COLOURS as WAY_COLOURS
from ortmulti.bench.diagnose.causes import style, title
from ortmulti.bench.diagnose.report import view
from ortmulti.bench.diagnose.report.view import Trace
from ortmulti.bench.files import printable

Json = Mapping[str, Any]

# What a bar's 100% are in pixels, about: on a page 1280 and 400 pixels wide. Labels are shown where they fit.
_WIDE, _NARROW = 840, 330
_LETTER = 7.2

_PLOT = (460, 300)
_LABEL = 15
_MARGIN = {"left": 46, "right": 112, "top": 14, "bottom": 40}


def escape(text: str) -> str:
    """Return text for HTML, also in attributes."""
    return html.escape(printable(text))


def pattern() -> str:
    """Return the hatching of causes that are waits, for every other drawing of the page."""
    return (
        '<svg class="definitions" width="0" height="0" aria-hidden="true"><defs>'
        '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="2" height="7" fill="#000000" fill-opacity="0.42"/></pattern></defs></svg>'
    )


def swatch(cause: str) -> str:
    """Return a small square in the cause's colour."""
    hatch = '<rect width="14" height="14" rx="3" fill="url(#hatch)"/>' if style(cause).hatched else ""
    return (
        f'<svg class="swatch" width="14" height="14" aria-hidden="true"><rect width="14" height="14" rx="3" '
        f'fill="{style(cause).colour}"/>{hatch}</svg>'
    )


def stacked_bar(trace: Trace, longest: float) -> str:
    """Return one trace as a bar of its causes, as long as its wall time is against `longest` seconds."""
    causes = trace.run["causes"]
    whole = sum(length for length in causes.values() if length > 0)
    scale = 100 * trace.wall / longest / whole if longest and whole else 0
    parts, left = [], 0.0
    for cause in view.causes_of([trace]):
        width = causes[cause] * scale
        parts.append(_segment(cause, left, width, causes[cause], trace.wall))
        left += width
    label = f"{trace.name}: {view.seconds(trace.wall)}"
    return (
        f'<svg class="bar" width="100%" height="30" role="img" aria-label="{escape(label)}">'
        f'<rect class="track" width="100%" height="30"/>{"".join(parts)}</svg>'
    )


def _segment(cause: str, left: float, width: float, length: float, wall: float) -> str:
    name, drawn = title(cause), style(cause)
    about = f"{name}: {view.seconds(length)}, {view.percent(length / wall)}"
    box = f'x="{left:.3f}%" width="{width:.3f}%" height="30"'
    hatch = f'<rect {box} fill="url(#hatch)"/>' if drawn.hatched else ""
    kind = "segment" if width > 0.5 else "segment thin"
    label, needs = "", len(name) * _LETTER + 10
    if width / 100 * _WIDE >= needs:
        shown = "label" if width / 100 * _NARROW >= needs else "label wide"
        back = f'<rect class="{shown}" x="4" y="7" width="{needs - 6:.0f}" height="17" fill="{drawn.colour}"/>'
        label = (
            f'<svg x="{left:.3f}%" width="{width:.3f}%" height="30">{back if drawn.hatched else ""}'
            f'<text class="{shown}" x="7" y="20" fill="{drawn.ink}">{escape(name)}</text></svg>'
        )
    return f'<g><title>{escape(about)}</title><rect class="{kind}" {box} fill="{drawn.colour}"/>{hatch}{label}</g>'


def meter(share: float, label: str) -> str:
    """Return a bar that is full at 1."""
    return (
        f'<svg class="meter" width="100%" height="8" role="img" aria-label="{escape(label)}">'
        f'<rect class="track" width="100%" height="8" rx="4"/>'
        f'<rect class="fill" width="{100 * min(1.0, max(0.0, share)):.2f}%" height="8" rx="4"/></svg>'
    )


def scaling_plot(traces: Sequence[Trace]) -> str:
    """Return seconds over the number of devices, a line for each way; dashed: as long as on one device."""
    width, height = _PLOT
    counts = sorted({len(trace.devices) for trace in traces})
    highest = _round_up(max(trace.wall for trace in traces))
    right, bottom = width - _MARGIN["right"], height - _MARGIN["bottom"]

    def x(count: int) -> float:
        span = counts[-1] - counts[0]
        place = (count - counts[0]) / span if span else 0.5
        return _MARGIN["left"] + 10 + place * (right - _MARGIN["left"] - 10)

    def y(seconds: float) -> float:
        return bottom - seconds / highest * (bottom - _MARGIN["top"])

    parts = []
    for step in range(5):
        value, unit = highest * step / 4, " s" if step == 4 else ""
        parts.append(
            f'<line class="grid" x1="{_MARGIN["left"]}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(
            f'<text x="{_MARGIN["left"] - 7}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}{unit}</text>'
        )
    noun = "devices" if all(len(set(one.devices)) == len(one.devices) for one in traces) else "sessions"
    for count in counts:
        parts.append(f'<text x="{x(count):.1f}" y="{bottom + 18}" text-anchor="middle">{count}</text>')
    parts.append(f'<text x="{(_MARGIN["left"] + right) / 2}" y="{height - 4}" text-anchor="middle">{noun}</text>')
    lines = _lines(traces)
    best = min(trace.wall for trace in traces if len(trace.devices) == counts[0])
    ends = []
    if len(counts) > 1:
        parts.append(
            f'<line class="ideal" x1="{x(counts[0]):.1f}" x2="{right}" y1="{y(best):.1f}" y2="{y(best):.1f}"/>'
        )
        ends.append((y(best), "ideal", ""))
    for number, (name, points) in enumerate(lines.items()):
        colour = WAY_COLOURS.get(name, "#CC79A7")
        places = " ".join(f"{x(count):.1f},{y(wall):.1f}" for count, wall in points)
        parts.append(f'<polyline class="line" points="{places}" stroke="{colour}"/>')
        for count, wall in points:
            about = f"{name} on {count}: {view.seconds(wall)}"
            parts.append(f"<g><title>{escape(about)}</title>{_marker(number, x(count), y(wall), colour)}</g>")
        if points[-1][0] == counts[-1]:
            ends.append((y(points[-1][1]), name, _marker(number, right + 14, 0, colour)))
    parts.append(_end_labels(ends, right, bottom))
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-label="Seconds from the start of the '
        f'process to the last answer, over the number of {noun}">{"".join(parts)}</svg>'
    )


def _lines(traces: Iterable[Trace]) -> dict[str, list[tuple[int, float]]]:
    lines: dict[str, list[tuple[int, float]]] = {}
    for trace in traces:
        lines.setdefault(trace.name, []).append((len(trace.devices), trace.wall))
    return {name: sorted(points) for name, points in lines.items()}


def _end_labels(ends: Sequence[tuple[float, str, str]], right: float, bottom: float) -> str:
    """Return the lines' names at their right ends, moved apart where they would overlap."""
    places: list[float] = []
    ordered = sorted(ends, key=lambda end: -end[0])
    for place, _, _ in ordered:
        places.append(min(place, places[-1] - _LABEL if places else bottom))
    # What was moved above the top comes down again, and with it what is below.
    least = _MARGIN["top"]
    for number in range(len(places) - 1, -1, -1):
        places[number] = max(places[number], least)
        least = int(places[number] + _LABEL)
    parts = []
    for place, (_, name, marker) in zip(places, ordered, strict=True):
        if marker:
            parts.append(f'<g transform="translate(0 {place:.1f})">{marker}</g>')
        short = name if len(name) <= 12 else f"{name[:11]}…"
        parts.append(f'<text x="{right + 23}" y="{place + 4:.1f}">{escape(short)}</text>')
    return "".join(parts)


def _marker(number: int, x: float, y: float, colour: str) -> str:
    shapes = (
        "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0",
        "M-4 -4h8v8h-8z",
        "M0 -5.2L5 3.6H-5z",
        "M0 -5.6L5.6 0L0 5.6L-5.6 0z",
        "M-1.7 -5.2h3.4v3.5h3.5v3.4h-3.5v3.5h-3.4v-3.5h-3.5v-3.4h3.5z",
    )
    shape = shapes[number % len(shapes)]
    return f'<path class="marker" d="{shape}" transform="translate({x:.1f} {y:.1f})" fill="{colour}"/>'


def _round_up(value: float) -> float:
    """Return the next number above that divides well by four."""
    unit = 1e-6
    while True:
        for factor in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8):
            if unit * factor >= value:
                return unit * factor
        unit *= 10
