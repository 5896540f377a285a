"""The timeline of a creation: named spans, per thread and device."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ortmulti import _core
from ortmulti.errors import InvalidArgument, LibraryError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Span", "Timeline"]

# Begins the name of a span without length that says why something did not go the fast way.
_NOT_SHARED = "not shared: "

# More spans of one thread, device and name than this become one row of the table.
_FOLD = 8

# Okabe and Ito's colours, which people with any colour vision tell apart; with other hatches once they are used up.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")


@dataclass(frozen=True)
class Span:
    """One named stretch of work of one thread.

    Attributes:
        name: Name of the work, such as ``"cuInit"``, ``"context"`` or ``"create session"``.
        start_ns: Begin, in nanoseconds of `time.monotonic_ns`'s clock.
        end_ns: End, on the same clock.
        thread: The kernel's number of the thread, as `threading.get_native_id` gives it.
        device: ``"cuda:3"`` or ``"cpu"``; empty for work for no single device.
        request: Id of the request, as ``trace`` gave it; of a joint run the ids of all that gave one, with commas
            between. Empty without.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    device: str
    request: str = ""

    @property
    def seconds(self) -> float:
        """The span's length in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


class Timeline:
    """The spans of a creation and of traced requests as they ended: the first 10,000, and the last 10,000."""

    def __init__(self, core: _core.Timeline | None = None) -> None:
        self._core = _core.Timeline() if core is None else core

    @property
    def spans(self) -> list[Span]:
        """The spans so far, in the order in which they ended."""
        return [Span(*fields) for fields in self._core.spans()]

    @property
    def not_shared(self) -> list[str]:
        """Reasons why some or all weights were not shared, each once. Empty if all were."""
        found = (span.name for span in self.spans if span.name.startswith(_NOT_SHARED))
        return list(dict.fromkeys(name.removeprefix(_NOT_SHARED) for name in found))

    def add(self, name: str, start_ns: int, end_ns: int, device: str = "") -> None:
        """Add a span of the calling thread, with times as in `Span`."""
        self._core.add(name, start_ns, end_ns, device)

    def extend(self, core: _core.Timeline) -> None:
        """Add the spans of another creation that was part of this one."""
        self._core.extend(core)

    def to_chrome_trace(self) -> dict[str, Any]:
        """Return the spans in the Trace Event Format, for Perfetto and chrome://tracing; times in microseconds."""
        process = os.getpid()
        spans = self.spans
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": process, "args": {"name": "ortmulti"}}
        ]
        names: dict[int, set[str]] = {}
        for span in spans:
            names.setdefault(span.thread, set())
            if span.device:
                names[span.thread].add(span.device)
            events.append(
                {
                    "name": span.name,
                    "cat": "ortmulti",
                    "ph": "X",
                    "ts": span.start_ns / 1e3,
                    "dur": (span.end_ns - span.start_ns) / 1e3,
                    "pid": process,
                    "tid": span.thread,
                    "args": {"device": span.device} | ({"request": span.request} if span.request else {}),
                }
            )
        main = threading.main_thread().native_id
        for thread, devices in names.items():
            label = ", ".join(sorted(devices)) or ("main" if thread == main else "thread")
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": label}})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_chrome_trace` to `path` as JSON.

        Raises:
            OSError: The file cannot be written.
        """
        import json  # here, as few creations need it

        Path(path).write_text(json.dumps(self.to_chrome_trace()), encoding="utf-8")

    def table(self) -> str:
        """Format the spans as a table in plain text.

        Each span has a row, in the order of begin, with times in milliseconds after the first begin. More than eight
        spans of one thread, device and name have one row together, with their total duration. A second table has, for
        each name that occurs more than once, the count, the total and the longest.
        """
        return _table(self.spans)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the spans over time: a row for each thread and device, nested spans below the outer ones.

        Args:
            path: An image to write; its suffix chooses the format (.png, .svg, .pdf). Default: none is written.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            LibraryError: matplotlib is not installed (the extra ``ortmulti[plot]``).
            InvalidArgument: The timeline has no spans, or matplotlib does not write this format.
            OSError: The file cannot be written.
        """
        return _plot(self.spans, None if path is None else Path(path))

    def __len__(self) -> int:
        return len(self._core.spans())

    def __repr__(self) -> str:
        return f"<Timeline of {len(self)} spans>"


class _Row(NamedTuple):
    name: str
    device: str
    thread: int
    start_ns: int
    busy_ns: int
    end_ns: int


def _folded(spans: Iterable[Span]) -> list[_Row]:
    groups: defaultdict[tuple[int, str, str], list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.thread, span.device, span.name].append(span)
    rows: list[_Row] = []
    for (thread, device, name), group in groups.items():
        if len(group) > _FOLD:
            start, end = min(span.start_ns for span in group), max(span.end_ns for span in group)
            busy = sum(span.end_ns - span.start_ns for span in group)
            rows.append(_Row(f"{name}, {len(group)} times in sum", device, thread, start, busy, end))
        else:
            rows.extend(_Row(name, device, thread, s.start_ns, s.end_ns - s.start_ns, s.end_ns) for s in group)
    # What contains another span comes before it.
    return sorted(rows, key=lambda row: (row.start_ns, -row.end_ns))


def _columns(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(alignment))]
    return [
        "  ".join(
            cell.rjust(width) if side == ">" else cell.ljust(width)
            for cell, width, side in zip(row, widths, alignment, strict=True)
        ).rstrip()
        for row in rows
    ]


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"


def _table(spans: Sequence[Span]) -> str:
    if not spans:
        return "no spans"
    begin, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    main = threading.main_thread().native_id
    lines = _columns(
        [
            ("start, ms", "duration, ms", "device", "thread", "span"),
            *(
                (
                    _ms(row.start_ns - begin),
                    _ms(row.busy_ns),
                    row.device or "-",
                    "main" if row.thread == main else str(row.thread),
                    row.name,
                )
                for row in _folded(spans)
            ),
        ],
        ">><><",
    )
    lines.append(f"{len(spans)} span{'s' * (len(spans) > 1)} in {_ms(end - begin)} ms")

    durations: defaultdict[str, list[int]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_ns):
        durations[span.name].append(span.end_ns - span.start_ns)
    totals = [
        (str(len(times)), _ms(sum(times)), _ms(max(times)), name) for name, times in durations.items() if len(times) > 1
    ]
    if totals:
        lines += ["", *_columns([("times", "total, ms", "longest, ms", "span"), *totals], ">>><")]
    return "\n".join(lines)


def _lanes(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Return each span with the number of those around it, so that nested ones are drawn below what contains them."""
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


def _plot(spans: Sequence[Span], path: Path | None) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise LibraryError('plots need matplotlib: pip install "ortmulti[plot]"') from error
    if not spans:
        raise InvalidArgument("the timeline has no spans: there is nothing to plot")

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
