"""Makes an element of a diagnosis's "runs" from the records of a process: each instant has exactly one cause."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ortmulti.bench.diagnose.causes import CAUSES, UNEXPLAINED
from ortmulti.bench.diagnose.trace.phases import (
    CREATION,
    Mark,
    Span,
    core_spans,
    phases,
    read_log,
    read_profile,
    split_first_run,
)
from ortmulti.bench.diagnose.trace.waits import CALLS, INITIALIZE, Samples, find_waits, seconds_on_cpu, split_off_cpu


def flatten(spans: Iterable[Span]) -> list[Span]:
    """Return one thread's spans without overlaps: at each moment the one that began last, and of these the shortest."""
    ordered = sorted((span for span in spans if span.length > 0), key=lambda span: (span.start, -span.end))
    times = sorted({time for span in ordered for time in (span.start, span.end)})
    places = {time: place for place, time in enumerate(times)}
    last = np.full(len(times), -1)  # the number of the span from each time to the next one
    for number, span in enumerate(ordered):
        last[places[span.start] : places[span.end]] = number
    cuts = [0, *(np.flatnonzero(np.diff(last)) + 1)]
    return [ordered[last[at]].part(times[at], times[to]) for at, to in itertools.pairwise(cuts) if last[at] >= 0]


_Lanes = Mapping[int, Sequence[Span]]  # each thread's spans without overlaps


def _at(lane: Sequence[Span], time: int) -> Span | None:
    """Return a thread's work at a time."""
    index = bisect_right(lane, time, key=lambda span: span.start) - 1
    return lane[index] if index >= 0 and lane[index].end > time else None


def attribute(lanes: _Lanes, windows: Iterable[Span], main_thread: int) -> dict[str, int]:
    """Return nanoseconds of each cause, by the spans of each thread. They add up to the windows' length.

    A window is a part of the run, with the thread and the device of the session that finishes it last. At each instant
    the cause is the work of this thread. If the thread waits for other threads, the cause is their work, for its device
    if any. If it does nothing, the cause is the work of the main thread, or else of any thread.
    """
    times = sorted({time for lane in lanes.values() for span in lane for time in (span.start, span.end)})
    sums: dict[str, int] = {}
    for window in windows:
        cuts = [window.start, *(time for time in times if window.start < time < window.end), window.end]
        for start, end in itertools.pairwise(cuts):
            cause = _cause(lanes, window, main_thread, start)
            sums[cause] = sums.get(cause, 0) + end - start
    return sums


def _cause(lanes: _Lanes, window: Span, main_thread: int, time: int) -> str:
    def work(causes: Sequence[str] = tuple(CAUSES)) -> str | None:
        spans = filter(None, (_at(lane, time) for lane in lanes.values()))
        working = [span for span in spans if span.cause in causes and not span.waits_for]
        return min(working, key=lambda span: span.device != window.device).cause if working else None

    for thread in (window.thread, main_thread):
        if (span := _at(lanes.get(thread, ()), time)) is not None:
            if span.waits_for and (found := work(span.waits_for)):
                return found
            if span.cause is not None:
                return span.cause
    return work() or UNEXPLAINED


_SHORTEST_SPAN_NS = 50_000  # shorter ones count in the sums and are not listed


class Recording:
    """The records of a process that has ended; times in nanoseconds of `time.monotonic_ns`'s clock."""

    def __init__(self, folder: Path, started: int, ended: int, pid: int, samples: Samples) -> None:
        """Read the files "events" and "log" of a folder; `ended` is when the process's end was noticed."""
        self.started, self.pid, self.samples = started, pid, samples
        self.log = folder / "log"  # standard output and error
        self.others: dict[str, list[dict[str, Any]]] = {}  # the events that are no spans, by their kind, in order
        spans: dict[tuple[int, int], dict[str, Any]] = {}
        file = folder / "events"
        for line in file.read_text().splitlines() if file.exists() else ():
            with contextlib.suppress(ValueError):  # the last line may be incomplete
                event = json.loads(line)
                kind = event.pop("kind")
                if kind in ("begin", "end"):
                    spans.setdefault((event["pid"], event.pop("number")), {}).update(event)
                else:
                    self.others.setdefault(kind, []).append(event)
        # When it answered or failed; this is also the end of spans that are still open.
        self.end: int = self.one("answered").get("time") or self.one("failed").get("time", ended)
        self.spans = [Span(**{"end": max(span["start"], self.end), **span}) for span in spans.values()]

    def one(self, kind: str) -> Mapping[str, Any]:
        """Return the first line of a kind; empty if there is none."""
        return next(iter(self.others.get(kind, ())), {})


def fill(run: dict[str, Any], recording: Recording) -> None:
    """Add to a run what follows from its recording: "wall", "ready", "first_answers", "spans", "causes", "explained",
    "onnxruntime" (the package's release, None without it).

    A run that failed is traced up to its last event.
    """
    ready = recording.one("ready").get("time")
    end = recording.end
    spans = [span for span in _spans(run["way"], run["devices"], recording) if span.length > 0]
    lanes: dict[int, list[Span]] = {}
    for span in spans:
        lanes.setdefault(span.thread, []).append(span)
    lanes = {thread: flatten(own) for thread, own in lanes.items()}
    sums = attribute(lanes, _windows(spans, recording, ready), recording.pid)
    wall = end - recording.started

    def since_start(time: int) -> float:
        return (time - recording.started) / 1e9

    answers = {span.session: since_start(span.end) for span in spans if span.name == _FIRST_RUN}
    run["wall"] = wall / 1e9
    if ready is not None:
        run["ready"] = since_start(ready)
    run["first_answers"] = [answers[number] for number in range(len(run["devices"])) if number in answers]
    run["spans"] = [
        {
            **{name: getattr(span, name) for name in ("cause", "name", "thread", "session", "device")},
            "start": since_start(span.start),
            "end": since_start(span.end),
            "cpu": seconds_on_cpu(recording.samples.get(span.thread, ()), span.start, span.end),
        }
        for span in sorted(itertools.chain(*lanes.values()), key=lambda span: span.start)
        if span.cause is not None and span.start < end and span.length >= _SHORTEST_SPAN_NS
    ]
    run["causes"] = {cause: sums[cause] / 1e9 for cause in CAUSES if sums.get(cause)}
    run["explained"] = 1 - sums.get(UNEXPLAINED, 0) / wall if wall else 0.0
    run["onnxruntime"] = recording.one("onnxruntime").get("release")


def _spans(way: str, devices: Sequence[str], recording: Recording) -> list[Span]:
    """Return all spans of a process, divided as far as its records tell; they may overlap."""
    own, pid, samples = way in ("native", "shared"), recording.pid, recording.samples
    began = min((span.start for span in recording.spans if span.pid == pid), default=recording.end)
    spans = [Span("interpreter", "interpreter", recording.started, began, pid, pid), *recording.spans]
    marks: dict[int, list[Mark]] = {}
    if own:
        for mark in sorted(recording.others.get("mark", ()), key=lambda mark: mark["time"]):
            marks.setdefault(mark["thread"], []).append(Mark(mark["time"], mark["text"]))
        begun = sorted((found[0].time, thread) for thread, found in marks.items())
        unfinished = [
            {"name": CREATION, "start": start, "end": recording.end, "pid": pid, "thread": thread, "device": device}
            for (start, thread), device in zip(begun, devices, strict=False)
        ]
        # A timeline is lost with a creation that failed.
        spans += core_spans(recording.others.get("core", unfinished), devices)
    else:
        marks = read_log(recording.log, time.time_ns() - time.monotonic_ns())
    waits = list(find_waits(spans, samples)) if way == "threads" else []
    found = _divide_runs(_divide_creations(spans, marks, own), recording)
    creations = [span for span in found if span.name in (CREATION, INITIALIZE)]
    for span in list(found):
        if span.on_gpu and span.cause == "set up":  # it waits for the driver
            continue
        beside = any(
            other.pid == span.pid and other.thread != span.thread and other.common(span.start, span.end) > 0
            for other in creations
        )
        found += [
            sleep
            for sleep in split_off_cpu(span, samples.get(span.thread, ()), beside)
            if not any(wait.thread == sleep.thread and wait.common(sleep.start, sleep.end) > 0 for wait in waits)
        ]
    return [*found, *waits]


_FIRST_RUN, _SECOND_RUN = "first run", "second run"


def _divide_creations(spans: Sequence[Span], marks: Mapping[int, Sequence[Mark]], own: bool) -> list[Span]:
    """Return the spans, with ONNX Runtime's creations divided by its marks: by thread for ortmulti's `own` sessions, by
    session for onnxruntime's.
    """
    found: list[Span] = []
    opened: dict[int, int] = {}  # process -> when its first session on a GPU had opened the CUDA provider
    for span in sorted(spans, key=lambda span: span.start):
        key = span.thread if own else span.session
        if key is None or span.name not in ((CREATION,) if own else CALLS):
            found.append(span)
            continue
        before = "set up"
        if span.name == INITIALIZE and span.on_gpu and span.start < opened.get(span.pid, span.end):
            before = "libraries"
        parts = phases(span, marks.get(key, ()), before)
        if before == "libraries":
            opened.setdefault(span.pid, parts[0].end)
        if len(parts) == 1 and span.cause is not None:  # without marks: what the call is for
            found.append(span)
        else:
            found += [replace(span, cause=None), *parts]
    return found


def _divide_runs(spans: Sequence[Span], recording: Recording) -> list[Span]:
    """Return the spans with what only the first runs have, without the second ones."""
    second = {span.session: span.length for span in spans if span.name == _SECOND_RUN}
    profiles = {profile["session"]: Path(profile["path"]) for profile in recording.others.get("profile", ())}
    found = [span for span in spans if span.name != _SECOND_RUN]
    for span in [span for span in found if span.name == _FIRST_RUN and span.session in second]:
        runs = read_profile(profiles[span.session]) if span.session in profiles else []
        found += split_first_run(span, second[span.session], runs)
    return found


def _windows(spans: Sequence[Span], recording: Recording, ready: int | None) -> Iterator[Span]:
    """Yield the creation, along the session that is ready last, and the first run, along the one that answers last."""
    start = recording.started
    for name, until in ((CREATION, ready or recording.end), (_FIRST_RUN, recording.end)):
        if until > start:
            candidates = [span for span in spans if span.name == name and span.start < until]
            of_process = Span(None, name, start, until, recording.pid, recording.pid)
            yield max(candidates, key=lambda span: span.end, default=of_process).part(start, until)
            start = until
