"""Makes an element of a diagnosis's "runs" from the records of a process: each instant has exactly one cause."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ortmulti.bench.diagnose.causes import CAUSES, UNEXPLAINED
from ortmulti.bench.diagnose.trace.events import Events, RawSpan
from ortmulti.bench.diagnose.trace.phases import (
    CREATION,
    Mark,
    Run,
    core_spans,
    phases,
    read_log,
    read_profile,
    split_first_run,
    unfinished_spans,
)
from ortmulti.bench.diagnose.trace.sampler import ThreadSamples
from ortmulti.bench.diagnose.trace.waits import find_waits, split_off_cpu


@dataclass(frozen=True)
class Segment:
    """A part of one thread's time in which one span is the innermost."""

    start: int
    end: int
    span: RawSpan


def flatten(spans: Iterable[RawSpan]) -> list[Segment]:
    """Return one thread's spans without overlaps: at each moment the one that began last, and of these the shortest."""
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


_Lanes = Mapping[int, Sequence[Segment]]
"""Each thread's segments."""


def _at(segments: Sequence[Segment], time: int) -> RawSpan | None:
    """Return a thread's work at a time."""
    index = bisect_right(segments, time, key=lambda segment: segment.start) - 1
    return segments[index].span if index >= 0 and segments[index].end > time else None


@dataclass(frozen=True)
class Window:
    """A part of the run, and the thread of the session that finishes it last."""

    start: int
    end: int
    thread: int
    device: str


def attribute(lanes: _Lanes, windows: Sequence[Window], main_thread: int) -> dict[str, int]:
    """Return nanoseconds of each cause. They add up to the windows' length.

    At each instant the cause is the work of the window's thread. If this thread waits for other threads, the cause is
    their work, for its device if any. If it does nothing, the cause is the work of the main thread, or else of any
    thread.

    Args:
        lanes: each thread's segments.
        windows: the parts of the run, in their order.
        main_thread: the first process's.
    """
    times = sorted({time for segments in lanes.values() for part in segments for time in (part.start, part.end)})
    sums: dict[str, int] = {}
    for window in windows:
        cuts = [window.start, *(time for time in times if window.start < time < window.end), window.end]
        for start, end in itertools.pairwise(cuts):
            cause = _cause(lanes, window, main_thread, start)
            sums[cause] = sums.get(cause, 0) + end - start
    return sums


def _cause(lanes: _Lanes, window: Window, main_thread: int, time: int) -> str:
    for thread in (window.thread, main_thread):
        span = _at(lanes.get(thread, ()), time)
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


def _active(lanes: _Lanes, time: int) -> list[RawSpan]:
    spans = (_at(segments, time) for segments in lanes.values())
    return [span for span in spans if span is not None and not span.waits_for]


def _choose(spans: Sequence[RawSpan], device: str) -> str | None:
    """Return the cause of one of the spans, of the device if there is one."""
    own = [span for span in spans if span.device == device and span.cause is not None]
    return next((span.cause for span in [*own, *spans] if span.cause is not None), None)


_SHORTEST_SPAN_NS = 50_000
"""Shorter ones count in the sums and are not listed."""


@dataclass
class Recording:
    """The records of a process that has ended; times in nanoseconds of `time.monotonic_ns`'s clock.

    Attributes:
        started: when its parent started it.
        ended: when its end was noticed.
        pid: its number.
        events: its own events.
        log: the file with its standard output and error.
        realtime_offset: nanoseconds by which the system's clock is ahead.
        threads: the samples of its threads.
    """

    started: int
    ended: int
    pid: int
    events: Events
    log: Path
    realtime_offset: int
    threads: dict[int, ThreadSamples] = field(default_factory=dict)


def fill(run: dict[str, Any], recording: Recording) -> None:
    """Add to a run what follows from its recording: "wall", "ready", "first_answers", "spans", "causes", "explained",
    "onnxruntime" (the package's release, None without it).

    A run that failed is traced up to its last event.
    """
    events = recording.events
    answered, ready = events.one("answered").get("time"), events.one("ready").get("time")
    end = answered or events.one("failed").get("time", recording.ended)
    spans = [span for span in _spans(run, recording, end) if (span.end or 0) > span.start]
    by_thread: dict[int, list[RawSpan]] = {}
    for span in spans:
        by_thread.setdefault(span.thread, []).append(span)
    lanes = {thread: flatten(own) for thread, own in by_thread.items()}
    sums = attribute(lanes, _windows(spans, recording, ready, end), recording.pid)
    wall = end - recording.started

    def since_start(time: int) -> float:
        return (time - recording.started) / 1e9

    answers = {span.session: since_start(span.end or 0) for span in spans if span.name == _FIRST_RUN}
    run["wall"] = wall / 1e9
    if ready is not None:
        run["ready"] = since_start(ready)
    run["first_answers"] = [answers[number] for number in range(len(run["devices"])) if number in answers]
    run["spans"] = [
        _listed(segment, recording, since_start)
        for segment in sorted(
            (segment for segments in lanes.values() for segment in segments), key=lambda segment: segment.start
        )
        if segment.span.cause is not None and segment.start < end and segment.end - segment.start >= _SHORTEST_SPAN_NS
    ]
    run["causes"] = {cause: sums[cause] / 1e9 for cause in CAUSES if sums.get(cause)}
    run["explained"] = 1 - sums.get(UNEXPLAINED, 0) / wall if wall else 0.0
    run["onnxruntime"] = events.one("onnxruntime").get("release")


def _spans(run: Mapping[str, Any], recording: Recording, end: int) -> list[RawSpan]:
    events = recording.events
    told = list(events.spans)
    for span in told:
        if span.end is None:
            span.end = max(span.start, end)
    began = min((span.start for span in told if span.pid == recording.pid), default=end)
    told.insert(0, RawSpan("interpreter", "interpreter", recording.started, began, recording.pid, recording.pid))
    if run["way"] in ("native", "shared"):
        found: dict[int, list[Mark]] = {}
        for mark in sorted(events.others.get("mark", ()), key=lambda mark: mark["time"]):
            found.setdefault(mark["thread"], []).append(Mark(mark["time"], mark["text"]))
        if "core" in events.others:
            told += core_spans(events.others["core"], run["devices"])
        else:  # the timeline was lost with the creation
            told += unfinished_spans(found, run["devices"], recording.pid, end)
    else:
        found = read_log(recording.log, recording.realtime_offset)
    profiles: dict[int, list[Run]] = {
        profile["session"]: read_profile(Path(profile["path"])) for profile in events.others.get("profile", ())
    }
    waits = find_waits(told, recording.threads) if run["way"] == "threads" else []
    divided = _divide_runs(_divide_creations(told, found, run["way"]), profiles)
    return _add_sleeps([*divided, *waits], recording.threads)


_CONSTRUCT, _INITIALIZE = "construct", "initialize"
_FIRST_RUN, _SECOND_RUN = "first run", "second run"


def _divide_creations(spans: Sequence[RawSpan], marks: Mapping[int, Sequence[Mark]], way: str) -> list[RawSpan]:
    """Return the spans, with ONNX Runtime's creations divided by its marks.

    Args:
        spans: all that have ended.
        marks: by session for onnxruntime's, by thread for ortmulti's.
        way: the strategy.
    """
    found: list[RawSpan] = []
    opened: dict[int, int] = {}  # process -> when its first session on a GPU had opened the CUDA provider
    for span in sorted(spans, key=lambda span: span.start):
        assert span.end is not None
        key = span.thread if way in ("native", "shared") else span.session
        divided = span.name in (_CONSTRUCT, _INITIALIZE) or (span.name == CREATION and way in ("native", "shared"))
        if not divided or key is None:
            found.append(span)
            continue
        before = "set up"
        if span.name == _INITIALIZE and span.device.startswith("cuda:") and span.start < opened.get(span.pid, span.end):
            before = "libraries"
        parts = phases(marks.get(key, ()), span.start, span.end, before)
        if before == "libraries":
            opened.setdefault(span.pid, parts[0].end)
        if len(parts) == 1 and span.cause is not None:  # without marks: what the call is for
            found.append(span)
            continue
        found.append(replace(span, cause=None))
        found += [replace(span, cpu=None, **part._asdict()) for part in parts]
    return found


def _divide_runs(spans: Sequence[RawSpan], profiles: Mapping[int, Sequence[Run]]) -> list[RawSpan]:
    """Return the spans with what only the first runs have, without the second ones."""
    second = {
        span.session: (span.end or 0) - span.start for span in spans if span.cause == "run" and span.name == _SECOND_RUN
    }
    found = []
    for span in spans:
        if span.name == _SECOND_RUN:
            continue
        found.append(span)
        if span.name == _FIRST_RUN and span.session is not None and span.session in second:
            found += split_first_run(span, second[span.session], profiles.get(span.session, ()))
    return found


def _add_sleeps(spans: Sequence[RawSpan], threads: dict[int, ThreadSamples]) -> list[RawSpan]:
    """Add spans in which a thread slept although it had work and did not wait for the GIL."""
    found = list(spans)
    creations = [span for span in spans if span.name in (CREATION, _INITIALIZE)]
    waits = [span for span in spans if span.cause == "wait for the GIL"]
    for span in spans:
        if span.device.startswith("cuda:") and span.cause == "set up":  # it waits for the driver
            continue
        beside = any(
            other.pid == span.pid and other.thread != span.thread and _meet(other, span) for other in creations
        )
        sleeps = split_off_cpu(span, threads, beside)
        found += [
            sleep for sleep in sleeps if not any(wait.thread == sleep.thread and _meet(wait, sleep) for wait in waits)
        ]
    return found


def _meet(one: RawSpan, other: RawSpan) -> bool:
    return one.start < (other.end or 0) and other.start < (one.end or 0)


def _windows(spans: Sequence[RawSpan], recording: Recording, ready: int | None, end: int) -> list[Window]:
    """Return the creation, along the session that is ready last, and the first run, along the one that answers last."""
    windows = []
    start = recording.started
    for name, until in ((CREATION, ready or end), (_FIRST_RUN, end)):
        if until <= start:
            continue
        last = max(
            (span for span in spans if span.name == name and span.start < until),
            key=lambda span: span.end or 0,
            default=None,
        )
        thread, device = (recording.pid, "") if last is None else (last.thread, last.device)
        windows.append(Window(start, until, thread, device))
        start = until
    return windows


def _listed(segment: Segment, recording: Recording, since_start: Any) -> dict[str, Any]:
    span = segment.span
    samples = recording.threads.get(span.thread)
    cpu = span.cpu
    if cpu is None or (segment.start, segment.end) != (span.start, span.end):
        cpu = None if samples is None else samples.on_cpu(segment.start, segment.end)
    fields = {name: getattr(span, name) for name in ("cause", "name", "thread", "session", "device")}
    return {**fields, "start": since_start(segment.start), "end": since_start(segment.end), "cpu": cpu}
