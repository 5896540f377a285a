"""Waits: a thread slept although it had work, or waited for the GIL."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ortmulti.bench.diagnose.trace.events import RawSpan
from ortmulti.bench.diagnose.trace.phases import CREATION
from ortmulti.bench.diagnose.trace.sampler import Sample, ThreadSamples

_LEAST_NS = 10_000_000
"""Shorter sleeps are below what sampling tells."""

# What a thread has no reason to sleep in: neither a file nor a device is waited for.
_COMPUTING = {
    "set up",
    "optimization level 1",
    "optimization level 2",
    "optimization level 3",
    "other optimization",
    "planning",
    "prepacking",
}

_PAGE_FAULT = -1
# The kernel's numbers of the calls that wait for a file (read, readv, pread64, preadv, openat, mmap), of futex and of
# ioctl, by which the CUDA driver works.
_FILES, _LOCK, _DRIVER = {
    "x86_64": ({0, 2, 9, 17, 19, 257, 295}, 202, 16),
    "aarch64": ({56, 63, 65, 67, 69, 222}, 98, 29),
}.get(platform.machine(), (set[int](), None, None))


def sleeps_for_the_gil(samples: Sequence[Sample]) -> bool:
    """Return whether a thread's sleep is mostly a wait for the GIL.

    CPython waits for its lock with a timeout of a few milliseconds, again and again. Waits for a lock of the CUDA
    driver or of ONNX Runtime have no timeout. Unknown counts as yes.
    """
    known = [sample for sample in samples if sample.asleep and sample.call is not None]
    return _LOCK is None or 2 * sum(sample.call == _LOCK and sample.timed for sample in known) >= len(known)


def split_off_cpu(span: RawSpan, threads: dict[int, ThreadSamples], beside: bool) -> list[RawSpan]:
    """Return the parts of a span in which its thread slept without a reason.

    Args:
        span: one that has ended.
        threads: the samples of all threads.
        beside: whether other sessions are created in the same process meanwhile.
    """
    samples = threads.get(span.thread)
    if span.cause not in _COMPUTING or samples is None:
        return []
    assert span.end is not None
    found: list[RawSpan] = []
    stretch: list[tuple[Sample, Sample]] = []
    pairs = list(zip(samples.samples, samples.samples[1:], strict=False))
    for before, after in [*pairs, (None, None)]:
        if before is not None and after is not None and _slept(before, after):
            stretch.append((before, after))
            continue
        if stretch:
            start, end = max(span.start, stretch[0][0].time), min(span.end, stretch[-1][1].time)
            inside = [pair for pair in stretch if pair[1].time > span.start and pair[0].time < span.end]
            cause = _reason(inside, beside) if end - start >= _LEAST_NS else None
            if cause is not None:
                name = f"{cause}, in {span.name}"
                found.append(replace(span, cause=cause, name=name, start=start, end=end, cpu=None))
        stretch = []
    return found


def _slept(before: Sample, after: Sample) -> bool:
    busy = after.on_cpu - before.on_cpu + after.waited - before.waited
    return after.asleep and busy < (after.time - before.time) / 2


def _reason(stretch: Collection[tuple[Sample, Sample]], beside: bool) -> str | None:
    """Return the cause; None for work of the CUDA driver, which the span itself describes."""
    reading = waiting = driving = 0
    for before, after in stretch:
        reading += after.faults > before.faults or after.call == _PAGE_FAULT or after.call in _FILES
        waiting += after.call == _LOCK
        driving += after.call == _DRIVER
    most = len(stretch) / 2
    if driving > most:
        return None
    if reading > most:
        return "read weights"
    return "wait for another session" if beside and waiting > most else "wait"


_CALLS = ("construct", "initialize")
"""The spans of the two calls of ONNX Runtime of which a creation by the onnxruntime package consists."""

_BETWEEN_NS = 200_000
_INSIDE_NS = 10_000_000
"""The shortest waits that are told: between two calls, and at the end of one, of which sampling tells."""

_BUSY_SHARE = 0.5
"""Who waits for the GIL wakes every few milliseconds to ask for it, but could run for less than this share of the time.
Time without a free CPU counts as time on one."""


def find_waits(spans: Sequence[RawSpan], threads: Mapping[int, ThreadSamples]) -> list[RawSpan]:
    """Return the waits for the GIL of Python threads that create sessions.

    A thread is between two calls of ONNX Runtime for microseconds only. It waits if it stays there while another thread
    is inside of such a call. It also waits if it is hardly on a CPU at the end of a call that has released the GIL.

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
    """Return the last part of a call, in which its thread is hardly on a CPU."""
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
