"""Who asks: threads that each ask again when they were answered, or one that asks when it is time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti._runtime.closing import Closing

from .latencies import Arrival
from .loads import NANOSECONDS

# Between looks at whether every client has an answer, before anything is measured.
_NAP_SECONDS = 0.05


class ClosedLoop(Closing):
    """Threads that ask and ask again, until it is closed. Usable as a context manager.

    Attributes:
        answers: (asked, answered) of each request, in nanoseconds of `time.perf_counter_ns`, by client.
        last: each client's last answer.
    """

    def __init__(self, asks: Sequence[Callable[[], Any]]) -> None:
        """
        Args:
            asks: what each client calls, again and again; it returns the answer.
        """
        self.answers: list[list[tuple[int, int]]] = [[] for _ in asks]
        self.last: list[Any] = [None] * len(asks)
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(number, ask), name=f"client {number}", daemon=True)
            for number, ask in enumerate(asks)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int, ask: Callable[[], Any]) -> None:
        record, clock, stopped = self.answers[number].append, time.perf_counter_ns, self._stop.is_set
        try:
            while not stopped():
                begin = clock()
                answer = ask()
                record((begin, clock()))
                self.last[number] = answer
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()

    def go_on(self, seconds: float) -> tuple[int, int]:
        """Lets the clients ask for so long.

        Returns:
            From when until when, in nanoseconds of `time.perf_counter_ns`.

        Raises:
            What a client's call raised.
        """
        begin = time.perf_counter_ns()
        self._stop.wait(seconds)
        end = time.perf_counter_ns()
        self._raise()
        return begin, end

    def until_answered(self) -> None:
        """Waits until each client has an answer. Raises what a client's call raised."""
        while not all(self.answers) and not self._stop.wait(_NAP_SECONDS):
            pass
        self._raise()

    def _raise(self) -> None:
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """Lets the clients end with the request that each has in flight. Again: does nothing."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def ask_at(
    submit: Callable[[int], Future[Any]], times: NDArray[np.int64], patience: float
) -> tuple[list[Arrival], int, int]:
    """Asks when it is time, whether or not the requests before were answered.

    Args:
        submit: called with a request's number, from 0 on; returns at once.
        times: when each is to be asked for, in nanoseconds from the call's beginning, ascending.
        patience: seconds for which answers are waited for after the last request; those that are still missing then
            are cancelled.

    Returns:
        The requests; when the call began, and when waiting ended, in nanoseconds of `time.perf_counter_ns`.

    Raises:
        What a request raised.
    """
    clock, sleep = time.perf_counter_ns, time.sleep
    done: list[int | None] = [None] * len(times)
    errors: list[BaseException] = []
    pending: dict[int, Future[Any]] = {}
    ended = threading.Semaphore(0)

    def when_done(number: int) -> Callable[[Future[Any]], None]:
        def call(future: Future[Any]) -> None:
            moment = clock()
            if not future.cancelled():
                done[number] = moment
                if (error := future.exception()) is not None:
                    errors.append(error)
            pending.pop(number, None)
            ended.release()

        return call

    start = clock()
    due = (times + start).tolist()
    sent: list[int] = []
    try:
        for number, moment in enumerate(due):
            while (left := moment - clock()) > 0:
                sleep(left / NANOSECONDS)
            sent.append(clock())
            pending[number] = future = submit(number)
            future.add_done_callback(when_done(number))
            if errors:
                break
        deadline = clock() + int(patience * NANOSECONDS)
        for _ in sent:
            # Not `concurrent.futures.wait`, which may return before a future's callbacks were called.
            if errors or not ended.acquire(timeout=max(0.0, (deadline - clock()) / NANOSECONDS)):
                break
        end = clock()
    finally:
        for future in list(pending.copy().values()):
            future.cancel()
    if errors:
        raise errors[0]
    return [Arrival(*one) for one in zip(due, sent, done, strict=True)], start, end
