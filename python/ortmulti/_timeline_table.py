"""A timeline as plain text."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortmulti.timeline import Span

# More spans of one thread, device and name than this become one row.
_FOLD = 8


@dataclass(frozen=True)
class _Row:
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
            rows.append(_Row(f"{name}, {len(group)} times", device, thread, start, busy, end))
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


def format_table(spans: Sequence[Span]) -> str:
    """The table that `Timeline.table` describes, without a line break at its end."""
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
