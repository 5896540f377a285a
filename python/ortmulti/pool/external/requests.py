"""What a pool is asked for, and who does it."""

from __future__ import annotations

import abc
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["Notify", "Reports", "Request", "Run", "Worker", "await_reports"]


class Request:
    """One run that somebody waits for. All but the question is guarded by the dispatcher's lock until it is concluded.

    Attributes:
        names: The outputs that are wanted.
        feed: The inputs, checked; None once they are not needed.
        device: Where it is to run; empty: anywhere.
        timeout: Seconds until the answer is not wanted any more.
        notify: Called once, when it is concluded, with the lock: it must not wait.
        key: What requests have alike that may run together; None: it runs alone.
        size: Its size along the axis of batches.
        number: By which waiting requests are ordered.
        run: The run that has it.
        answer: What `notify` needs.
        outputs, error, cancelled: The answer.
        seconds: How long its run took.
    """

    __slots__ = (
        "answer",
        "cancelled",
        "concluded",
        "deadline",
        "device",
        "error",
        "feed",
        "key",
        "names",
        "notify",
        "number",
        "outputs",
        "retried",
        "run",
        "seconds",
        "size",
        "submitted",
        "timeout",
        "timer",
    )

    def __init__(
        self,
        names: Sequence[str],
        feed: Mapping[str, Any],
        device: str,
        timeout: float | None,
        notify: Callable[[Request], object],
    ) -> None:
        self.names = names
        self.feed: Mapping[str, Any] | None = feed
        self.device = device
        self.timeout = timeout
        self.notify: Callable[[Request], object] | None = notify
        self.answer: Any = None
        self.key: Any = None
        self.size = 0
        self.number = 0
        self.submitted = time.monotonic_ns()
        self.deadline = None if timeout is None else self.submitted + int(min(timeout, 1e8) * 1e9)
        self.timer: Any = None
        self.run: Run | None = None
        self.retried = False
        self.concluded = False
        self.outputs: list[Any] | None = None
        self.error: BaseException | None = None
        self.cancelled = False
        self.seconds = 0.0

    def take_outputs(self) -> list[Any]:
        """The answer, once it is concluded; frees the inputs."""
        self.feed = None
        outputs, self.outputs = self.outputs, None
        if self.error is not None:
            raise self.error
        assert outputs is not None
        return outputs


class Run:
    """One run of the model by one worker, for one request or for several of equal shapes.

    Attributes:
        requests: Whose answer it gives.
        worker: Who does it.
        taken: Whether a thread has begun with it.
        slot: What the worker knows it by.
        padded: Whether it has more rows than the requests.
    """

    __slots__ = ("padded", "requests", "slot", "taken", "worker")

    def __init__(self, requests: list[Request], worker: Worker) -> None:
        self.requests = requests
        self.worker = worker
        self.taken = False
        self.slot: Any = None
        self.padded = False
        for request in requests:
            request.run = self

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for it."""
        return any(not request.concluded for request in self.requests)


class Worker(abc.ABC):
    """One session and what feeds it. Those marked so are called with the dispatcher's lock, and must not wait.

    Attributes:
        device: The session's.
        capacity: How many runs it is given at a time; it does them in the order in which it got them.
        runs: Those that it has.
        usable: Whether it takes requests.
    """

    def __init__(self, device: str, capacity: int) -> None:
        self.device = device
        self.capacity = capacity
        self.runs: list[Run] = []
        self.usable = False

    @abc.abstractmethod
    def begin(self, run: Run) -> None:
        """Has a thread of the worker's own do it. Called with the lock."""

    @abc.abstractmethod
    def end_early(self, run: Run) -> None:
        """Asks that a run ends for which nobody waits. Called with the lock."""

    @abc.abstractmethod
    def has_begun(self, run: Run) -> bool:
        """Whether the session has begun with it. Called with the lock."""

    @abc.abstractmethod
    def warm_up(self, names: Sequence[str], feed: Mapping[str, Any]) -> None:
        """Runs the session once, beside the queue.

        Raises:
            Error: The run failed.
        """

    @abc.abstractmethod
    def stop(self, patience: float | None) -> None:
        """Frees the session when its runs have ended, and returns then; again: does nothing.

        Args:
            patience: Seconds after which what cannot be ended is left or killed; None: as long as it takes.
        """


Reports: TypeAlias = "queue.SimpleQueue[tuple[Worker, BaseException | None]]"
Notify: TypeAlias = Callable[[int, int, str], object]
"""Called as ``notify(ready, total, device)`` whenever a session is ready."""


def await_reports(reports: Reports, total: int, notify: Notify) -> None:
    """Wait until ``total`` workers have reported that they are ready.

    Raises:
        BaseException: The first error that a worker reported.
    """
    for ready in range(1, total + 1):
        worker, error = reports.get()
        if error is not None:
            raise error
        notify(ready, total, worker.device)
