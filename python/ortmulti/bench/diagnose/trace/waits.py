"""Samples the threads of a process from outside, and finds where one sleeps without a reason or waits for the GIL."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import platform
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ortmulti.bench.diagnose.trace.phases import CREATION, Span
from ortmulti.bench.measure.memory import process_tree

_PERIOD_SECONDS = 0.005
# Every so many samplings new threads are looked for, and new processes, for which all of /proc has to be read.
_THREADS, _PROCESSES = 2, 10
# With very many threads, sampling itself may take this share of a core.
_SHARE = 0.25
# Which argument of futex is its time-out.
_TIMEOUT = 3


class Sample(NamedTuple):
    """A thread at one moment."""

    time: int  # of `time.monotonic_ns`'s clock
    on_cpu: int  # nanoseconds on a CPU so far
    waited: int  # nanoseconds in which it was ready but had no CPU
    faults: int  # pages of files that it has waited for so far
    asleep: bool
    call: int | None  # the number of the system call in which it sleeps; -1: it waits for a page of memory
    timed: bool = False  # whether a wait for a lock has a timeout


Samples = dict[int, list[Sample]]  # each thread's samples, in their order


def seconds_on_cpu(samples: Sequence[Sample], start: int, end: int) -> float | None:
    """Return seconds on a CPU between two times, between samples by proportion; None where it was not sampled."""
    if not samples or end <= samples[0].time or start >= samples[-1].time:
        return None

    def at(when: int) -> float:
        index = bisect.bisect_right(samples, when, key=lambda sample: sample.time)
        near = samples[max(index - 1, 0) : index + 1]
        return float(np.interp(when, [sample.time for sample in near], [sample.on_cpu for sample in near]))

    return (at(end) - at(start)) / 1e9


@contextlib.contextmanager
def sampled(pid: int, *, descendants: bool = False) -> Iterator[Samples]:
    """Sample all threads of a process during the body, and with `descendants` those of its children and theirs."""
    found: Samples = {}
    stop = threading.Event()

    def sample() -> None:
        pids, folders = [pid], list[Path]()
        turn, period = 0, _PERIOD_SECONDS
        while not stop.wait(period):
            begin = time.monotonic()
            if descendants and turn % _PROCESSES == 0:
                pids = process_tree(pid)
            if turn % _THREADS == 0:
                folders = []
                for one in pids:
                    with contextlib.suppress(OSError):
                        folders += Path(f"/proc/{one}/task").iterdir()
            turn += 1
            for folder in folders:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    _sample(folder, found.setdefault(int(folder.name), []))
            period = max(_PERIOD_SECONDS, (time.monotonic() - begin) * (1 / _SHARE - 1))

    thread = threading.Thread(target=sample, name="sampler", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _sample(folder: Path, samples: list[Sample]) -> None:
    on_cpu, waited = (int(part) for part in (folder / "schedstat").read_text().split()[:2])
    now = time.monotonic_ns()
    # After the name in brackets, which may itself hold blanks and brackets: the state, then the numbers.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    asleep = fields[0] in "SD"
    call, timed = None, False
    if asleep and samples and on_cpu - samples[-1].on_cpu < (now - samples[-1].time) / 2:
        with contextlib.suppress(OSError, ValueError, IndexError):
            number, *arguments = (folder / "syscall").read_text().split()
            call, timed = int(number), len(arguments) > _TIMEOUT and int(arguments[_TIMEOUT], 16) != 0
    samples.append(Sample(now, on_cpu, waited, int(fields[9]), asleep, call, timed))


# --- Waits ------------------------------------------------------------------------------------------------------------

# Shorter sleeps, and waits at the end of a call, are below what sampling tells.
_LEAST_NS = 10_000_000

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


def split_off_cpu(span: Span, samples: Sequence[Sample], beside: bool) -> list[Span]:
    """Return the parts of a span in which its thread slept without a reason; `beside`: other sessions are created."""
    found: list[Span] = []
    if span.cause in _COMPUTING:
        for slept, pairs in itertools.groupby(itertools.pairwise(samples), _slept):
            stretch = list(pairs)
            start, end = max(span.start, stretch[0][0].time), min(span.end, stretch[-1][1].time)
            if slept and end - start >= _LEAST_NS:
                inside = [pair for pair in stretch if pair[1].time > span.start and pair[0].time < span.end]
                if cause := _reason(inside, beside):
                    found.append(span.part(start, end, cause, f"{cause}, in {span.name}"))
    return found


def _slept(pair: tuple[Sample, Sample]) -> bool:
    before, after = pair
    busy = after.on_cpu - before.on_cpu + after.waited - before.waited
    return after.asleep and busy < (after.time - before.time) / 2


def _reason(stretch: Collection[tuple[Sample, Sample]], beside: bool) -> str | None:
    """Return the cause of a sleep; None for work of the CUDA driver, which the span itself describes."""
    most = len(stretch) / 2
    calls = [after.call for _, after in stretch]
    if calls.count(_DRIVER) > most:
        return None
    reading = (after.faults > before.faults or after.call in (_PAGE_FAULT, *_FILES) for before, after in stretch)
    if sum(reading) > most:
        return "read weights"
    return "wait for another session" if beside and calls.count(_LOCK) > most else "wait"


def sleeps_for_the_gil(samples: Sequence[Sample]) -> bool:
    """Return whether a thread's sleep is mostly a wait for the GIL.

    CPython waits for its lock with a timeout of a few milliseconds, again and again. Waits for a lock of the CUDA
    driver or of ONNX Runtime have no timeout. Unknown counts as yes.
    """
    known = [sample for sample in samples if sample.asleep and sample.call is not None]
    return _LOCK is None or 2 * sum(sample.call == _LOCK and sample.timed for sample in known) >= len(known)


INITIALIZE = "initialize"
CALLS = ("construct", INITIALIZE)
"""The spans of the two calls of ONNX Runtime of which a creation by the onnxruntime package consists."""

# The shortest wait between two calls.
_BETWEEN_NS = 200_000
# Who waits for the GIL wakes every few milliseconds to ask for it, but could run for less than this share of the time.
# Time without a free CPU counts as time on one.
_BUSY_SHARE = 0.5


def find_waits(spans: Sequence[Span], samples: Samples) -> Iterator[Span]:
    """Yield the waits for the GIL of Python threads that create sessions.

    A thread is between two calls of ONNX Runtime for microseconds only. It waits if it stays there while another thread
    is inside of such a call. It also waits if it is hardly on a CPU at the end of a call that has released the GIL.
    """
    cause = "wait for the GIL"
    # The threads were started when the package had been imported.
    before = [span.end for span in spans if span.session is None and span.cause in ("libraries", "measurement")]
    for creation in [span for span in spans if span.name == CREATION]:
        busy = [
            span
            for span in spans
            if span.session == creation.session and (span.name in CALLS or span.cause in ("cuInit", "context"))
        ]
        others = [span for span in spans if span.name in CALLS and span.session != creation.session]
        reached = max(before, default=creation.start)
        stretches = [(span.start, span.end) for span in sorted(busy, key=lambda span: span.start)]
        for start, end in [*stretches, (creation.end, creation.end)]:
            if start - reached >= _BETWEEN_NS and _overlap(others, reached, start):
                yield creation.part(reached, start, cause, cause)
            reached = max(reached, end)
        for call in [span for span in busy if span.name in CALLS]:
            last = _last_busy(call, samples.get(call.thread, ()))
            if last is not None and call.end - last >= _LEAST_NS and _overlap(others, last, call.end):
                yield call.part(last, call.end, cause, cause)


def _overlap(others: Sequence[Span], start: int, end: int) -> bool:
    """Return whether one of the spans covers at least half of a time."""
    return 2 * max((other.common(start, end) for other in others), default=0) >= end - start


def _last_busy(call: Span, samples: Sequence[Sample]) -> int | None:
    """Return when a call's thread begins to wait for the GIL until its end; None where it does not."""
    inside = [sample for sample in samples if call.start <= sample.time <= call.end]
    if not inside:
        return None
    # Its lead over a thread that is busy for just that share of the time is largest where it begins to wait.
    last = max(inside, key=lambda sample: sample.on_cpu + sample.waited - _BUSY_SHARE * (sample.time - call.start))
    return last.time if sleeps_for_the_gil([sample for sample in inside if sample.time > last.time]) else None
