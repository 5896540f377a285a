"""Clients of a pool: closed and open loops, and the latencies of their requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortmulti._runtime.closing import Closing

NANOSECONDS = 1_000_000_000

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def summarize(seconds: Iterable[float]) -> dict[str, float] | None:
    """ "count", "mean", "max" and `QUANTILES` of latencies in seconds; None if there are none."""
    values = np.fromiter(seconds, float)
    if not len(values):
        return None
    # A quantile is the smallest value that at least this part of them does not exceed.
    shares = np.quantile(values, [*QUANTILES.values()], method="inverted_cdf").tolist()
    figures = {"count": len(values), "mean": float(values.mean()), "max": float(values.max())}
    return {**figures, **dict(zip(QUANTILES, shares, strict=True))}


class Arrival(NamedTuple):
    """One request of an open loop: its planned time, when it was sent, and when it was answered, in nanoseconds of one
    clock. `done` is None if it was not answered.
    """

    intended: int
    sent: int
    done: int | None

    def latency(self, now: int) -> float:
        """Return the seconds from the planned time until the answer, or at `now` if there is none (a lower bound).

        So it includes waits behind slow requests and delays of the client. To leave them out would be coordinated
        omission.
        """
        return ((now if self.done is None else self.done) - self.intended) / NANOSECONDS


def closed_loop(answers: Iterable[tuple[int, int]], begin: int, end: int) -> dict[str, Any]:
    """Summarize a closed loop within a time window, whose ends may lie within requests.

    Args:
        answers: (asked, answered) of each request, in nanoseconds.
        begin, end: the window; requests that were answered within it count.

    Returns:
        "requests", "throughput" (answers a second) and "latency" (`summarize`).
    """
    counted = [(done - asked) / NANOSECONDS for asked, done in answers if begin < done <= end]
    throughput = len(counted) * NANOSECONDS / (end - begin)
    return {"requests": len(counted), "throughput": throughput, "latency": summarize(counted)}


def open_loop(arrivals: Sequence[Arrival], begin: int, end: int, now: int) -> dict[str, Any]:
    """Summarize an open loop within a time window.

    Args:
        arrivals: all requests of the loop.
        begin, end: the window, in nanoseconds. Requests planned within it are offered and have a latency; requests
            answered within it are achieved.
        now: the present time, see `Arrival.latency`.

    Returns:
        "requests" and "offered" (a second), "throughput" (answers a second), "unanswered", "latency" (`summarize`),
        and "lag" (`summarize`): how late requests were sent.
    """
    offered = [one for one in arrivals if begin <= one.intended < end]
    achieved = sum(one.done is not None and begin < one.done <= end for one in arrivals)
    return {
        "requests": len(offered),
        "offered": len(offered) * NANOSECONDS / (end - begin),
        "throughput": achieved * NANOSECONDS / (end - begin),
        "unanswered": sum(one.done is None for one in offered),
        "latency": summarize(one.latency(now) for one in offered),
        "lag": summarize((one.sent - one.intended) / NANOSECONDS for one in offered),
    }


# Between looks at whether every client has an answer, before anything is measured.
_NAP_SECONDS = 0.05


class ClosedLoop(Closing):
    """Threads that send requests one after another until the loop is closed. A context manager.

    Args:
        asks: a function for each client, called again and again; it returns the answer.

    Attributes:
        answers: (asked, answered) of each request, in nanoseconds of `time.perf_counter_ns`, by client.
        last: each client's last answer.
    """

    def __init__(self, asks: Sequence[Callable[[], Any]]) -> None:
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
        """Let the clients send requests for so long, and return the begin and the end. Raises what a client raised."""
        begin = time.perf_counter_ns()
        self._stop.wait(seconds)
        end = time.perf_counter_ns()
        self._raise()
        return begin, end

    def until_answered(self) -> None:
        """Wait until each client has an answer. Raises what a client raised."""
        while not all(self.answers) and not self._stop.wait(_NAP_SECONDS):
            pass
        self._raise()

    def _raise(self) -> None:
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """End the clients after their present requests. A second call does nothing."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def sampled(figure: Callable[[], int], seconds: float) -> Iterator[list[int]]:
    """Take a figure again and again after so many seconds during the block, and once behind it. Yield the highest one
    so far, as a list of one.
    """
    most = [figure()]

    def sample() -> None:
        time.sleep(seconds)
        most[0] = max(most[0], figure())

    with ClosedLoop([sample]):
        yield most
    most[0] = max(most[0], figure())


def measure_loop(asks: Sequence[Callable[[], Any]], seconds: float, warm_seconds: float = 0.0) -> dict[str, Any]:
    """Measure a closed loop with a client for each of `asks`, longer if nothing was answered by then.

    Returns:
        The result of `closed_loop`; "clients", and "cores": processor seconds of this process for a second.
    """
    with ClosedLoop(asks) as loop:
        loop.until_answered()
        loop.go_on(warm_seconds)
        used = time.process_time()
        begin, end = loop.go_on(seconds)
        while not (found := closed_loop((one for own in loop.answers for one in own), begin, end))["requests"]:
            _, end = loop.go_on(seconds)
        used = time.process_time() - used
    return {"clients": len(asks), **found, "cores": used * NANOSECONDS / (end - begin)}


def arrival_times(rate: float, seconds: float, seed: int) -> NDArray[np.int64]:
    """Return when independent requests arrive, in nanoseconds from the start, ascending, for so many seconds."""
    generator = np.random.default_rng(seed)
    # Poisson's process over a stretch of time: a Poisson number of places that are equally likely everywhere.
    times = np.sort(generator.random(generator.poisson(rate * seconds))) * seconds
    return np.asarray(times * NANOSECONDS, np.int64)


def ask_at(
    submit: Callable[[int], Future[Any]],
    times: NDArray[np.int64],
    patience: float,
    then: Callable[[int, Future[Any]], None] | None = None,
) -> tuple[list[Arrival], int, int]:
    """Send requests at given times, independently of earlier answers.

    Args:
        submit: called with a request's number, from 0 on; returns at once.
        times: planned time of each, in nanoseconds from the call's beginning, ascending.
        patience: seconds to wait for answers after the last request; later requests are cancelled.
        then: called with a request's number and its future after the time of the answer was taken; it handles errors.

    Returns:
        The requests; when the call began, and when waiting ended, in nanoseconds of `time.perf_counter_ns`.

    Raises:
        What a request raised, without `then`.
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
                if then is not None:
                    then(number, future)
                elif (error := future.exception()) is not None:
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
