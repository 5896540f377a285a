"""Samples the CPU time of a process's threads from outside, without help from the process."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ortmulti.bench.measure.memory import process_tree

_PERIOD_SECONDS = 0.005
# Every so many samplings new threads are looked for, and new processes, for which all of /proc has to be read.
_THREADS, _PROCESSES = 2, 10
# With very many threads, sampling itself may take this share of a core.
_SHARE = 0.25
# Which argument of futex is its time-out.
_TIMEOUT = 3


class Sample(NamedTuple):
    """A thread at one moment.

    Attributes:
        time: of `time.monotonic_ns`'s clock.
        on_cpu: nanoseconds on a CPU so far.
        waited: nanoseconds in which it was ready but had no CPU.
        faults: pages of files that it has waited for so far.
        asleep: whether it sleeps now.
        call: the number of the system call in which it sleeps; -1: it waits for a page of memory; None: unknown.
        timed: whether a wait for a lock has a timeout.
    """

    time: int
    on_cpu: int
    waited: int
    faults: int
    asleep: bool
    call: int | None
    timed: bool = False


Samples = dict[int, list[Sample]]
"""Each thread's samples, in their order."""


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
    arguments = (pid, descendants, found, stop)
    thread = threading.Thread(target=_sample_until_stopped, args=arguments, name="sampler", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _sample_until_stopped(pid: int, descendants: bool, found: Samples, stop: threading.Event) -> None:
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
