"""What a creation spends its time on: named spans, per thread and device."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti import _core, _timeline_plot, _timeline_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Span", "Timeline"]

# Begins the name of a span without length that says why something did not go the fast way.
_NOT_SHARED = "not shared: "


@dataclass(frozen=True)
class Span:
    """One named stretch of work of one thread.

    Attributes:
        name: What was done, such as ``"cuInit"``, ``"context"`` or ``"create session"``.
        start_ns: Begin, in nanoseconds of `time.monotonic_ns`'s clock.
        end_ns: End, on the same clock.
        thread: The kernel's number of the thread, as `threading.get_native_id` gives it.
        device: ``"cuda:3"`` or ``"cpu"``; empty for work that belongs to no one device.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    device: str

    @property
    def seconds(self) -> float:
        """The span's length in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


class Timeline:
    """The spans of a creation, in the order in which they ended."""

    def __init__(self, core: _core.Timeline | None = None) -> None:
        self._core = _core.Timeline() if core is None else core

    @property
    def spans(self) -> list[Span]:
        """The spans so far, those that ended first being first."""
        return [Span(*fields) for fields in self._core.spans()]

    @property
    def not_shared(self) -> list[str]:
        """Why weights were not shared, or not all of them: each reason once. Empty where they were."""
        found = (span.name for span in self.spans if span.name.startswith(_NOT_SHARED))
        return list(dict.fromkeys(name.removeprefix(_NOT_SHARED) for name in found))

    def add(self, name: str, start_ns: int, end_ns: int, device: str = "") -> None:
        """Adds a span of the calling thread; times as in `Span`."""
        self._core.add(name, start_ns, end_ns, device)

    def extend(self, core: _core.Timeline) -> None:
        """Adds the spans of another creation that was part of this one."""
        self._core.extend(core)

    def to_chrome_trace(self) -> dict[str, Any]:
        """The spans in the Trace Event Format, which Perfetto and chrome://tracing open: times in microseconds."""
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
                    "args": {"device": span.device},
                }
            )
        main = threading.main_thread().native_id
        for thread, devices in names.items():
            label = ", ".join(sorted(devices)) or ("main" if thread == main else "thread")
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": label}})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_chrome_trace` to `path` as JSON.

        Raises:
            OSError: The file cannot be written.
        """
        import json  # here, as few creations need it

        Path(path).write_text(json.dumps(self.to_chrome_trace()), encoding="utf-8")

    def table(self) -> str:
        """The spans as a table in plain text.

        One row a span in the order in which they began, times in milliseconds from the beginning of the first; more
        than eight of one thread, device and name are one row, whose duration is theirs together. Below it, for each
        name that occurs more than once: how often, the total and the longest.
        """
        return _timeline_table.format_table(self.spans)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the spans over time, those of each thread and device in a row, nested ones below what contains them.

        Args:
            path: An image to write; its suffix chooses the format (.png, .svg, .pdf). Default: none is written.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            LibraryError: matplotlib is not installed (the extra ``ortmulti[plot]``).
            InvalidArgument: There are no spans, or matplotlib does not write such files.
            OSError: The file cannot be written.
        """
        return _timeline_plot.draw(self.spans, None if path is None else Path(path))

    def __len__(self) -> int:
        return len(self._core.spans())

    def __repr__(self) -> str:
        return f"<Timeline of {len(self)} spans>"
