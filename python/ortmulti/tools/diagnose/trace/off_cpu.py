"""Where a thread slept in the midst of what should keep it on a CPU, and what it slept for."""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from dataclasses import replace

from .events import RawSpan
from .sampler import Sample, ThreadSamples

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
    """Whether a thread, where it sleeps, mostly waits for a lock as CPython does for the GIL: for a few milliseconds,
    again and again. Waits for a lock of the CUDA driver or of ONNX Runtime have no such end. Unknown counts as yes.
    """
    known = [sample for sample in samples if sample.asleep and sample.call is not None]
    return _LOCK is None or 2 * sum(sample.call == _LOCK and sample.timed for sample in known) >= len(known)


def split(span: RawSpan, threads: dict[int, ThreadSamples], beside: bool) -> list[RawSpan]:
    """The spans inside of a span in which its thread slept; none where it had a reason to.

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
    """The cause; None where the CUDA driver is at work, of which the span itself tells enough."""
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
