"""What a creation spends its time on: named spans, per thread and device."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti import _core

__all__ = ["Span", "Timeline"]


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

    def add(self, name: str, start_ns: int, end_ns: int, device: str = "") -> None:
        """Adds a span of the calling thread; times as in `Span`."""
        self._core.add(name, start_ns, end_ns, device)

    def to_chrome_trace(self) -> dict[str, Any]:
        """The spans in the Trace Event Format, which Perfetto and chrome://tracing open: times in microseconds."""
        process = os.getpid()
        spans = self.spans
        events: list[dict[str, Any]] = []
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
        Path(path).write_text(json.dumps(self.to_chrome_trace()), encoding="utf-8")

    def __len__(self) -> int:
        return len(self._core.spans())

    def __repr__(self) -> str:
        return f"<Timeline of {len(self)} spans>"
