"""A session's creation and first run as spans of one cause each, from all records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ortmulti.bench.diagnose.trace.phases import CREATION, Mark, Run, phases, split_first_run
from ortmulti.bench.diagnose.trace.waits import split_off_cpu

from .events import RawSpan
from .sampler import ThreadSamples

_CONSTRUCT, _INITIALIZE = "construct", "initialize"
_FIRST_RUN, _SECOND_RUN = "first run", "second run"


def divide_creations(spans: Sequence[RawSpan], marks: Mapping[int, Sequence[Mark]], way: str) -> list[RawSpan]:
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


def divide_runs(spans: Sequence[RawSpan], profiles: Mapping[int, Sequence[Run]]) -> list[RawSpan]:
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


def add_sleeps(spans: Sequence[RawSpan], threads: dict[int, ThreadSamples]) -> list[RawSpan]:
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
