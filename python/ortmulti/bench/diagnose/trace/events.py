"""Events of a traced process: a file to which it and its workers append lines.

The lines of a process that dies stay, with its last spans still open.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class RawSpan:
    """A part of one thread's time, in nanoseconds of `time.monotonic_ns`'s clock.

    Attributes:
        cause: a name of `causes.CAUSES`; None if the inner spans and the gaps between them say more.
        end: None while the span is open.
        cpu: seconds that the thread was on a CPU, if known.
        waits_for: the causes of other threads' work for which this thread waits.
    """

    cause: str | None
    name: str
    start: int
    end: int | None
    pid: int
    thread: int
    session: int | None = None
    device: str = ""
    cpu: float | None = None
    waits_for: tuple[str, ...] = ()


class EventWriter:
    """The process's side. Lines are appended whole, so that several processes and threads may write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._numbers = itertools.count()

    def write(self, kind: str, **content: Any) -> None:
        """Append a line."""
        os.write(self._file, (json.dumps({"kind": kind, "pid": os.getpid(), **content}) + "\n").encode())

    @contextlib.contextmanager
    def span(self, cause: str | None, name: str, session: int | None = None, device: str = "") -> Iterator[None]:
        """A span of the calling thread around the body."""
        number = next(self._numbers)
        thread = threading.get_native_id()
        start, start_cpu = time.monotonic_ns(), time.thread_time_ns()
        fields = {"cause": cause, "name": name, "session": session, "device": device}
        self.write("begin", number=number, start=start, thread=thread, **fields)
        try:
            yield
        finally:
            end = time.monotonic_ns()
            self.write("end", number=number, end=end, cpu=(time.thread_time_ns() - start_cpu) / 1e9)

    def past(self, cause: str | None, name: str, start: int, end: int, **fields: Any) -> None:
        """A span that has ended already, by default of the calling thread."""
        fields.setdefault("thread", threading.get_native_id())
        self.write("past", cause=cause, name=name, start=start, end=end, **fields)


@dataclass
class Events:
    """The events read from the file: the spans, and the other lines by their kind, in order."""

    spans: list[RawSpan] = field(default_factory=list)
    others: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def one(self, kind: str) -> Mapping[str, Any]:
        """Return the first line of a kind; empty if there is none."""
        return next(iter(self.others.get(kind, ())), {})


def read(path: Path) -> Events:
    """Read the events so far, without an incomplete last line."""
    events = Events()
    open_spans: dict[tuple[int, int], RawSpan] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        kind = event.pop("kind")
        if kind == "begin":
            span = RawSpan(**{key: value for key, value in event.items() if key != "number"}, end=None)
            open_spans[event["pid"], event["number"]] = span
            events.spans.append(span)
        elif kind == "end":
            span = open_spans[event["pid"], event["number"]]
            span.end, span.cpu = event["end"], event["cpu"]
        elif kind == "past":
            events.spans.append(RawSpan(**event))
        else:
            events.others.setdefault(kind, []).append(event)
    return events
