"""Threads beside event loops that tokenize, for whoever waits, texts of several callers in one call."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ortmulti.errors import DeadlineExceeded

__all__ = ["BLOCK", "CHARACTERS", "Job", "Tokenizing"]

BLOCK = 64
"""Texts are tokenized so many at a time, so that those of other callers come in between."""
CHARACTERS = 64 << 10
"""And of so many characters, but for one text."""
_THREADS = 4
_QUICK = 8 << 10  # characters: what is tokenized in a few milliseconds


class Job(NamedTuple):
    """Texts of a caller.

    Attributes:
        texts: A block of them.
        size: Their characters.
        first: The number of the first one in messages.
        truncate: As `Tokenizer.encode` has it.
        then: Gets their tokens, or an error, in one of the threads.
        timeout: Of the caller, in seconds since ``begin``; None: none.
        begin: As `time.monotonic` has it.
    """

    texts: Sequence[Any]
    size: int
    first: int
    truncate: Any
    then: Callable[[Any], None]
    timeout: float | None
    begin: float

    def late(self, now: float) -> bool:
        """Return whether nobody waits any more."""
        return self.timeout is not None and now >= self.begin + self.timeout


class Tokenizing:
    """The threads and what waits for them. They are made as needed, also in a forked child, which has none.

    Args:
        encode: Called with several jobs, returns what each one's ``then`` gets.
    """

    def __init__(self, encode: Callable[[list[Job]], list[Any]]) -> None:
        self._encode = encode
        self._process = 0
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._most = 0
        self._active = self._quick = 0  # threads that work; those of them that are soon ready for more

    def add(self, job: Job) -> None:
        """Have a job done."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            self._waiting.append(job)
            # Another one would only take texts from a thread that is soon there for all of them.
            if self._quick or self._active >= self._most:
                return
            self._active += 1
            self._quick += 1
            threads = self._threads = self._threads or ThreadPoolExecutor(self._most, "ortmulti-text")
        threads.submit(self._work)

    def close(self) -> None:
        """End the threads when they have done what they were asked for."""
        if self._process != os.getpid():
            return
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting = deque()
        self._threads = None
        self._most = min(_THREADS, len(os.sched_getaffinity(0)))
        self._active = self._quick = 0

    def _work(self) -> None:
        quick = True
        while True:
            with self._lock:
                jobs, late = self._take()
                was, quick = quick, sum(job.size for job in jobs) <= _QUICK
                self._quick += quick - was
                if not jobs and not late:
                    self._active -= 1
                    self._quick -= 1
                    return
            for job in late:
                job.then(_late(job))
            for job, found in zip(jobs, self._encode(jobs) if jobs else (), strict=True):
                job.then(found)
            jobs.clear()
            late.clear()

    def _take(self) -> tuple[list[Job], list[Job]]:
        """Return jobs that are to be done together, and those that are too late."""
        now = time.monotonic()
        late = [job for job in self._waiting if job.late(now)]
        if late:
            self._waiting = deque(job for job in self._waiting if not job.late(now))
        jobs: list[Job] = []
        texts = size = 0
        while self._waiting:
            texts += len(self._waiting[0].texts)
            size += self._waiting[0].size
            if jobs and (texts > BLOCK or size > CHARACTERS):
                break
            jobs.append(self._waiting.popleft())
        return jobs, late


def _late(job: Job) -> DeadlineExceeded:
    assert job.timeout is not None
    return DeadlineExceeded(
        f"the texts were not tokenized within {1000 * job.timeout:g} ms: give a longer timeout, in seconds, or send "
        "fewer texts at once"
    )
