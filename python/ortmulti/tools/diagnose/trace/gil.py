"""Where the thread of one session waits for the GIL, which that of another holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .core_spans import CREATION
from .events import RawSpan
from .off_cpu import sleeps_for_the_gil
from .sampler import ThreadSamples

_CALLS = ("construct", "initialize")
"""The spans of the two calls of ONNX Runtime of which a creation by the onnxruntime package consists."""

_BETWEEN_NS = 200_000
_INSIDE_NS = 10_000_000
"""The shortest waits that are told: between two calls, and at the end of one, of which sampling tells."""

_BUSY_SHARE = 0.5
"""Who waits for the GIL wakes every few milliseconds to ask for it, but could run for less than this share of the time.
Time without a free CPU counts as time on one."""


def find_waits(spans: Sequence[RawSpan], threads: Mapping[int, ThreadSamples]) -> list[RawSpan]:
    """The waits for the GIL of Python threads that create sessions.

    A thread waits where it is between two calls of ONNX Runtime, which takes microseconds, while another one is inside
    of such a call; and where it is hardly on a CPU at the end of a call that has let go of the GIL.

    Args:
        spans: all of a process, which have ended.
        threads: the samples of its threads.
    """
    calls = [span for span in spans if span.name in _CALLS]
    found: list[RawSpan] = []
    for creation in spans:
        if creation.name == CREATION:
            assert creation.end is not None
            own = sorted((call for call in calls if call.session == creation.session), key=lambda call: call.start)
            others = [call for call in calls if call.session != creation.session]
            found += _between(creation, spans, own, others)
            for call in own:
                found += _at_end(call, others, threads.get(call.thread))
    return found


def _between(
    creation: RawSpan, spans: Sequence[RawSpan], own: Sequence[RawSpan], others: Sequence[RawSpan]
) -> list[RawSpan]:
    assert creation.end is not None
    # The thread was started when the package had been imported.
    reached = max(
        (span.end or 0 for span in spans if span.session is None and span.cause in ("libraries", "measurement")),
        default=creation.start,
    )
    busy = [*own, *(span for span in spans if span.session == creation.session and span.cause in ("cuInit", "context"))]
    stretches = [(span.start, span.end or 0) for span in sorted(busy, key=lambda span: span.start)]
    found = []
    for start, end in [*stretches, (creation.end, creation.end)]:
        if start - reached >= _BETWEEN_NS and 2 * _overlap(reached, start, others) >= start - reached:
            found.append(_wait(creation, reached, start))
        reached = max(reached, end)
    return found


def _at_end(call: RawSpan, others: Sequence[RawSpan], samples: ThreadSamples | None) -> list[RawSpan]:
    """The end of a call, from where its thread is hardly on a CPU any more."""
    assert call.end is not None
    inside = [] if samples is None else [sample for sample in samples.samples if call.start <= sample.time <= call.end]
    if not inside:
        return []
    # Its lead over a thread that is busy for just that share of the time is largest where it begins to wait.
    last = max(inside, key=lambda sample: sample.on_cpu + sample.waited - _BUSY_SHARE * (sample.time - call.start))
    left = call.end - last.time
    if left < _INSIDE_NS or 2 * _overlap(last.time, call.end, others) < left:
        return []
    if not sleeps_for_the_gil([sample for sample in inside if sample.time > last.time]):
        return []
    return [_wait(call, last.time, call.end)]


def _overlap(start: int, end: int, others: Sequence[RawSpan]) -> int:
    return max((min(end, other.end or 0) - max(start, other.start) for other in others), default=0)


def _wait(span: RawSpan, start: int, end: int) -> RawSpan:
    cause = "wait for the GIL"
    return replace(span, cause=cause, name=cause, start=start, end=end, cpu=None)
