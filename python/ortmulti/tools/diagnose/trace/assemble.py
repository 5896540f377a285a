"""From what was recorded of a process to an element of a diagnosis's "runs"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmulti.tools.diagnose.causes import CAUSES, UNEXPLAINED

from . import core_spans, marks
from .events import Events, RawSpan
from .first_run import Run, read_profile
from .gil import find_waits
from .sampler import ThreadSamples
from .sessions import add_sleeps, divide_creations, divide_runs
from .sweep import Segment, Window, attribute, flatten

_SHORTEST_SPAN_NS = 50_000
"""Shorter ones count in the sums and are not listed."""


@dataclass
class Recording:
    """What there is of a process that has ended; times in nanoseconds of `time.monotonic_ns`'s clock.

    Attributes:
        started: when its parent started it.
        ended: when it was found to have ended.
        pid: its number.
        events: what it said itself.
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
    """Adds to a run what follows from its recording: "wall", "ready", "first_answers", "spans", "causes", "explained",
    "onnxruntime" (the package's release, None without it).

    A run that failed is accounted for up to the last thing that it said.
    """
    events = recording.events
    answered, ready = events.one("answered").get("time"), events.one("ready").get("time")
    end = answered or _last_sign(recording)
    spans = [span for span in _spans(run, recording, end) if (span.end or 0) > span.start]
    by_thread: dict[int, list[RawSpan]] = {}
    for span in spans:
        by_thread.setdefault(span.thread, []).append(span)
    lanes = {thread: flatten(own) for thread, own in by_thread.items()}
    sums = attribute(lanes, _windows(spans, recording, ready, end), recording.pid)
    wall = end - recording.started

    def since_start(time: int) -> float:
        return (time - recording.started) / 1e9

    answers = {span.session: since_start(span.end or 0) for span in spans if span.name == "first run"}
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


def _last_sign(recording: Recording) -> int:
    """When a process that failed did so: as it said itself, or when it ended."""
    failed: int = recording.events.one("failed").get("time", recording.ended)
    return failed


def _spans(run: Mapping[str, Any], recording: Recording, end: int) -> list[RawSpan]:
    events = recording.events
    told = list(events.spans)
    for span in told:
        if span.end is None:
            span.end = max(span.start, end)
    began = min((span.start for span in told if span.pid == recording.pid), default=end)
    told.insert(0, RawSpan("interpreter", "interpreter", recording.started, began, recording.pid, recording.pid))
    if run["way"] in ("native", "shared"):
        found: dict[int, list[marks.Mark]] = {}
        for mark in sorted(events.others.get("mark", ()), key=lambda mark: mark["time"]):
            found.setdefault(mark["thread"], []).append(marks.Mark(mark["time"], mark["text"]))
        if "core" in events.others:
            told += core_spans.convert(events.others["core"], run["devices"])
        else:  # the timeline was lost with the creation
            told += core_spans.unfinished(found, run["devices"], recording.pid, end)
    else:
        found = marks.read_log(recording.log, recording.realtime_offset)
    profiles: dict[int, list[Run]] = {
        profile["session"]: read_profile(Path(profile["path"])) for profile in events.others.get("profile", ())
    }
    waits = find_waits(told, recording.threads) if run["way"] == "threads" else []
    divided = divide_runs(divide_creations(told, found, run["way"]), profiles)
    return add_sleeps([*divided, *waits], recording.threads)


def _windows(spans: Sequence[RawSpan], recording: Recording, ready: int | None, end: int) -> list[Window]:
    """The creation, along the session that is ready last, and the first run, along the one that answers last."""
    windows = []
    start = recording.started
    for name, until in (("create session", ready or end), ("first run", end)):
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
    return {
        "cause": span.cause,
        "name": span.name,
        "start": since_start(segment.start),
        "end": since_start(segment.end),
        "thread": span.thread,
        "session": span.session,
        "device": span.device,
        "cpu": cpu,
    }
