"""Samples the CPU time of a process's threads from outside, without help from the process."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from ortmulti.bench.measure.memory import process_tree

_PERIOD_SECONDS = 0.005
# Every so many samplings new threads are looked for, and new processes, for which all of /proc has to be read.
_LOOK_FOR_THREADS = 2
_LOOK_FOR_PROCESSES = 10
# With very many threads, sampling itself may take this share of a core.
_SHARE = 0.25
# Which argument of futex is its time-out.
_TIMEOUT = 3


@dataclass(frozen=True)
class Sample:
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


@dataclass
class ThreadSamples:
    """One thread's samples, in their order."""

    pid: int
    samples: list[Sample] = field(default_factory=list)

    def on_cpu(self, start: int, end: int) -> float | None:
        """Return seconds on a CPU between two times, between samples by proportion; None where it was not sampled."""
        if not self.samples or end <= self.samples[0].time or start >= self.samples[-1].time:
            return None
        return (self._at(end) - self._at(start)) / 1e9

    def _at(self, when: int) -> float:
        index = bisect.bisect_right(self.samples, when, key=lambda sample: sample.time)
        if index == 0:
            return self.samples[0].on_cpu
        before = self.samples[index - 1]
        if index == len(self.samples):
            return before.on_cpu
        after = self.samples[index]
        share = (when - before.time) / (after.time - before.time)
        return before.on_cpu + share * (after.on_cpu - before.on_cpu)


class Sampler:
    """Samples all threads of a process, from a thread of this process."""

    def __init__(self, pid: int, descendants: bool = False) -> None:
        """
        Args:
            pid: the process.
            descendants: whether its children and theirs are sampled too.
        """
        self.threads: dict[int, ThreadSamples] = {}
        self._pids = [pid]
        self._descendants = descendants
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampling; the samples stay."""
        self._stop.set()
        self._thread.join()

    def _sample_until_stopped(self) -> None:
        known: list[tuple[int, Path]] = []
        turn, period = 0, _PERIOD_SECONDS
        while not self._stop.wait(period):
            begin = time.monotonic()
            if self._descendants and turn % _LOOK_FOR_PROCESSES == 0:
                self._pids = process_tree(self._pids[0])
            if turn % _LOOK_FOR_THREADS == 0:
                known = self._find_threads()
            turn += 1
            for pid, folder in known:
                self._sample(pid, folder)
            period = max(_PERIOD_SECONDS, (time.monotonic() - begin) * (1 / _SHARE - 1))

    def _find_threads(self) -> list[tuple[int, Path]]:
        found = []
        for pid in self._pids:
            with contextlib.suppress(OSError):
                found += [(pid, folder) for folder in Path(f"/proc/{pid}/task").iterdir()]
        return found

    def _sample(self, pid: int, folder: Path) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            on_cpu, waited = (int(part) for part in (folder / "schedstat").read_text().split()[:2])
            now = time.monotonic_ns()
            # After the name in brackets, which may itself hold blanks and brackets: the state, then the numbers.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            asleep = fields[0] in "SD"
            thread = self.threads.setdefault(int(folder.name), ThreadSamples(pid))
            before = thread.samples[-1] if thread.samples else None
            call, timed = None, False
            if asleep and before is not None and on_cpu - before.on_cpu < (now - before.time) / 2:
                call, timed = _system_call(folder)
            thread.samples.append(Sample(now, on_cpu, waited, int(fields[9]), asleep, call, timed))


def _system_call(folder: Path) -> tuple[int | None, bool]:
    """Its number, and whether there is a fourth argument, futex's time-out; None: unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        number, *arguments = (folder / "syscall").read_text().split()
        return int(number), len(arguments) > _TIMEOUT and int(arguments[_TIMEOUT], 16) != 0
    return None, False
