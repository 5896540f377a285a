"""Each instant of a run given to exactly one cause, along the way of the session that comes last."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortmulti.tools.diagnose.causes import UNEXPLAINED

from .events import RawSpan


@dataclass(frozen=True)
class Segment:
    """A stretch of one thread's time in which one span is the innermost."""

    start: int
    end: int
    span: RawSpan


def flatten(spans: Iterable[RawSpan]) -> list[Segment]:
    """One thread's spans without overlaps: at each moment the one that began last, and of these the shortest."""
    ordered = sorted(
        (span for span in spans if span.end is not None and span.end > span.start),
        key=lambda span: (span.start, -(span.end or 0)),
    )
    times = sorted({time for span in ordered for time in (span.start, span.end or 0)})
    segments: list[Segment] = []
    inside: list[tuple[int, int, RawSpan]] = []  # a heap: the one that began last is first
    index = 0
    for start, end in itertools.pairwise(times):
        while index < len(ordered) and ordered[index].start <= start:
            span = ordered[index]
            heapq.heappush(inside, (-span.start, -index, span))
            index += 1
        while inside and (inside[0][2].end or 0) <= start:
            heapq.heappop(inside)
        if not inside:
            continue
        span = inside[0][2]
        if segments and segments[-1].span is span and segments[-1].end == start:
            segments[-1] = Segment(segments[-1].start, end, span)
        else:
            segments.append(Segment(start, end, span))
    return segments


class _Lane:
    """One thread's segments, to be asked what it does at a time."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self._starts = [segment.start for segment in segments]

    def at(self, time: int) -> RawSpan | None:
        index = bisect_right(self._starts, time) - 1
        if index < 0 or self.segments[index].end <= time:
            return None
        return self.segments[index].span


@dataclass(frozen=True)
class Window:
    """A part of the run, and the thread of the session that is the last to be done with it."""

    start: int
    end: int
    thread: int
    device: str


def attribute(lanes: dict[int, list[Segment]], windows: Sequence[Window], main_thread: int) -> dict[str, int]:
    """Nanoseconds of each cause. They add up to the windows' length.

    At each instant it is what the window's thread does. Where that waits for something that other threads do, it is
    what is done by them, for its device if any; where it does nothing, what the main thread does, or else any thread.

    Args:
        lanes: each thread's segments.
        windows: the parts of the run, in their order.
        main_thread: the first process's.
    """
    asked = {thread: _Lane(segments) for thread, segments in lanes.items()}
    times = sorted({time for segments in lanes.values() for part in segments for time in (part.start, part.end)})
    sums: dict[str, int] = {}
    for window in windows:
        cuts = [window.start, *(time for time in times if window.start < time < window.end), window.end]
        for start, end in itertools.pairwise(cuts):
            cause = _cause(asked, window, main_thread, start)
            sums[cause] = sums.get(cause, 0) + end - start
    return sums


def _cause(lanes: dict[int, _Lane], window: Window, main_thread: int, time: int) -> str:
    for thread in (window.thread, main_thread):
        span = lanes[thread].at(time) if thread in lanes else None
        if span is None:
            continue
        if span.waits_for:
            others = [other for other in _active(lanes, time) if other.cause in span.waits_for]
            found = _choose(others, window.device)
            if found is not None:
                return found
        if span.cause is not None:
            return span.cause
    return _choose(_active(lanes, time), window.device) or UNEXPLAINED


def _active(lanes: dict[int, _Lane], time: int) -> list[RawSpan]:
    spans = (lane.at(time) for lane in lanes.values())
    return [span for span in spans if span is not None and not span.waits_for]


def _choose(spans: Sequence[RawSpan], device: str) -> str | None:
    """The cause of one of the spans, of the device if there is one."""
    own = [span for span in spans if span.device == device and span.cause is not None]
    return next((span.cause for span in [*own, *spans] if span.cause is not None), None)
