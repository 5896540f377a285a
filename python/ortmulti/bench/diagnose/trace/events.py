"""Spans of a traced process, and the file to which it and its workers append their events, a line each.

The lines of a process that dies stay, with its last spans still open.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass
class Span:
    """A part of one thread's time, in nanoseconds of `time.monotonic_ns`'s clock.

    Attributes:
        cause: a name of `causes.CAUSES`; None if the inner spans and the gaps between them say more.
        waits_for: the causes of other threads' work for which this thread waits.
    """

    cause: str | None
    name: str
    start: int
    end: int
    pid: int
    thread: int
    session: int | None = None
    device: str = ""
    waits_for: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda:")

    def part(self, start: int, end: int, cause: str | None = None, name: str = "") -> Span:
        """Return the span between other times, and with another cause and name if they are given."""
        if (start, end, cause) == (self.start, self.end, None):
            return self
        return replace(self, cause=cause or self.cause, name=name or self.name, start=start, end=end)

    def common(self, start: int, end: int) -> int:
        """Return how long it lasts between two times; negative if it does not reach them."""
        return min(self.end, end) - max(self.start, start)


class EventWriter:
    """The process's side: writes into the folder of one trace.

    Lines are appended whole, so that several processes and threads may write.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._file = os.open(f"{folder}/events", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._numbers = itertools.count()

    def write(self, kind: str, **content: Any) -> None:
        """Append a line."""
        os.write(self._file, (json.dumps({"kind": kind, "pid": os.getpid(), **content}) + "\n").encode())

    @contextlib.contextmanager
    def span(self, cause: str | None, name: str, session: int | None = None, device: str = "") -> Iterator[None]:
        """A span of the calling thread around the body."""
        number = self.add(cause, name, time.monotonic_ns(), session=session, device=device)
        try:
            yield
        finally:
            self.write("end", number=number, end=time.monotonic_ns())

    def add(self, cause: str | None, name: str, start: int, **fields: Any) -> int:
        """Write the begin of a span of the calling thread, and its "end" if it is over, and return its number."""
        number = next(self._numbers)
        fields |= {"cause": cause, "name": name, "start": start, "thread": threading.get_native_id()}
        self.write("begin", number=number, **fields)
        return number
