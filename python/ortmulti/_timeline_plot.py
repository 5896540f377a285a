"""A timeline as a drawing. Loads matplotlib."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.errors import InvalidArgument, LibraryError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ortmulti.timeline import Span

# Okabe and Ito's colours, which people with any colour vision tell apart; with other hatches once they are used up.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")


def _lanes(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Each span with the number of those around it, so that nested ones are drawn below what contains them."""
    placed: list[tuple[int, Span]] = []
    ends: list[int] = []
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        lane = next((i for i, end in enumerate(ends) if end <= span.start_ns), len(ends))
        ends[lane : lane + 1] = [span.end_ns]
        placed.append((lane, span))
    return placed


def _device_order(device: str) -> tuple[int, str, int]:
    kind, _, number = device.partition(":")
    return (0 if not device else 1 if device == "cpu" else 2, kind, int(number) if number.isdecimal() else 0)


def draw(spans: Sequence[Span], path: Path | None) -> Figure:
    """The figure that `Timeline.plot` describes."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise LibraryError('plots need matplotlib: pip install "ortmulti[plot]"') from error
    if not spans:
        raise InvalidArgument("the timeline has no spans, so that there is nothing to plot")

    main = threading.main_thread().native_id
    begin = min(span.start_ns for span in spans)
    groups: defaultdict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.device, span.thread].append(span)
    rows = sorted(groups, key=lambda row: (_device_order(row[0]), min(span.start_ns for span in groups[row])))
    names = list(dict.fromkeys(span.name for span in sorted(spans, key=lambda span: span.start_ns)))
    styles: dict[str, dict[str, Any]] = {}
    for i, (name, colour) in enumerate(zip(names, cycle(_COLOURS), strict=False)):
        hatch = _HATCHES[(i // len(_COLOURS)) % len(_HATCHES)]
        # An edge of its own colour keeps the shortest spans visible.
        styles[name] = {"facecolor": colour, "hatch": hatch, "edgecolor": "white" if hatch else colour}

    placed = {row: _lanes(groups[row]) for row in rows}
    depth = {row: 1 + max(lane for lane, _ in placed[row]) for row in rows}
    lanes = sum(depth.values())
    figure = Figure(figsize=(11, 1.4 + 0.28 * lanes + 0.22 * (len(names) + 2) // 3), layout="constrained")
    FigureCanvasAgg(figure)
    if path is not None and path.suffix.lstrip(".").lower() not in figure.canvas.get_supported_filetypes():
        raise InvalidArgument(f"matplotlib does not write {path.suffix or 'files without a suffix'}; use .png or .svg")
    axes = figure.subplots()
    top, ticks, labels = 0.0, [], []
    for row in rows:
        device, thread = row
        for lane, span in placed[row]:
            start, length = (span.start_ns - begin) / 1e6, (span.end_ns - span.start_ns) / 1e6
            if length > 0:
                axes.broken_barh([(start, length)], (top + lane + 0.1, 0.8), linewidth=0.5, **styles[span.name])
            else:
                axes.plot([start], [top + lane + 0.5], marker="D", color=styles[span.name]["facecolor"], clip_on=False)
        ticks.append(top + depth[row] / 2)
        who = "main thread" if thread == main else f"thread {thread}"
        labels.append(f"{device}, {who}" if device else who)
        top += depth[row] + 0.3
    axes.set_yticks(ticks, labels)
    axes.set_ylim(top, -0.3)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms")
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles = [Patch(label=name, **styles[name]) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), frameon=False, fontsize=8)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
