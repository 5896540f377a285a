"""Who runs what, and what becomes of it."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from ortmulti.errors import ClosedError, DeadlineExceeded, DeviceError, Error, ForkError
from ortmulti.pool.external.admission import Admission
from ortmulti.pool.external.deadlines import Timers
from ortmulti.pool.external.groups import Group, Groups
from ortmulti.pool.external.request_queue import RequestQueue
from ortmulti.pool.external.requests import Request, Run, Worker

__all__ = ["Dispatcher"]


class Dispatcher:
    """One queue in front of several workers. Every request that was accepted is concluded exactly once.

    Its methods may be called from any thread. What a worker or a request is told under the lock never waits, so that
    the lock is held for moments.

    Args:
        max_waiting: How many requests may wait; None: any number. Those that a worker has and has not begun count.
        waiting: The queue.
    """

    def __init__(self, max_waiting: int | None, waiting: RequestQueue) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._waiting = waiting
        self._groups = Groups()
        self._workers: list[Worker] = []
        self._timers = Timers(self._lock, self._due)
        self._admission = Admission(self._lock, max_waiting, lambda: len(waiting) + self._groups.staged())
        self._cancelled_waiting = 0
        self._failed_waiting = 0
        self._closing = False
        self._close_lock = threading.Lock()
        self._freed = False
        self.deliveries: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        """Requests whose futures are to be told, by a thread that may wait for them; None: there will be no more."""

        self.deliverer: threading.Thread | None = None
        """That thread, once there is something for it."""

    def check_process(self) -> None:
        """Raises ForkError in a child of the process that made it."""
        if not self.is_here:
            raise ForkError(
                "the pool was made before this process was forked, and its threads stayed with the parent; make it "
                "after the fork, or start workers with multiprocessing's 'spawn'"
            )

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made it."""
        return os.getpid() == self._process

    @property
    def workers(self) -> list[Worker]:
        """All workers there were, in the order in which they were added."""
        return list(self._workers)

    def add(self, worker: Worker) -> None:
        """Adds a worker; it is given requests once it is `ready`."""
        with self._lock:
            self._groups.add(worker)
            self._workers.append(worker)

    # --- What is asked for ---

    def submit(self, request: Request, limited: bool = False, wait: float | None = 0.0) -> None:
        """Gives the request to a worker, or has it wait.

        Args:
            limited: Whether it may be refused since too many wait.
            wait: Seconds to wait for room then; None: as long as it takes.
        """
        self.check_process()
        give_up = None if wait is None else time.monotonic() + wait
        try:
            with self._lock:
                self._check_accepted(request)
                if request.deadline is not None:
                    self._timers.start()
                while True:
                    if request.deadline is not None and request.deadline <= time.monotonic_ns():
                        raise DeadlineExceeded("the request's deadline passed before there was room for it")
                    worker = self._groups.choose(request) if request.key is None else None
                    if not limited or (worker is not None and not worker.runs) or not self._admission.is_full():
                        break
                    self._admission.wait(request, give_up)
                    self._check_accepted(request)
                if request.deadline is not None:
                    self._timers.add(request.deadline, request)
                if worker is not None:
                    self._give(worker, [request])
                else:
                    ripe_at = self._waiting.add(request)
                    if ripe_at is not None:
                        self._timers.add(ripe_at)
                    if request.key is not None:
                        self._give_out()
        except Error:
            raise
        except BaseException:  # Ctrl-C, between any two of these steps
            self._repair(request)
            raise

    def take_idle(self, request: Request) -> Run | None:
        """An idle worker for a run in the calling thread, which then calls `ended`; None where there is none."""
        self.check_process()
        with self._lock:
            self._check_accepted(request)
            worker = self._groups.choose(request)
            if worker is None or worker.runs:
                return None
            run = Run([request], worker)
            run.taken = True
            worker.runs.append(run)
            return run

    def cancel(self, request: Request) -> bool:
        """Takes the request out, or asks that its run ends, and says whether it was not concluded before."""
        self.check_process()
        with self._lock:
            if request.concluded:
                return False
            self._abandon(request, None)
            return True

    # --- What the workers say ---

    def take_up(self, run: Run) -> bool:
        """Whether the run is to be done by the worker's thread that calls; else it is not the worker's any more."""
        with self._lock:
            if run not in run.worker.runs or run.taken:
                return False
            if run.wanted:
                run.taken = True
                return True
            self._forget(run)
            return False

    def ended(
        self,
        run: Run,
        answers: Sequence[list[Any] | BaseException],
        started: int,
        ended: int,
        why_broken: str = "",
    ) -> None:
        """A run has ended; a second time: does nothing.

        Args:
            answers: Outputs, or how it failed, of each of its requests.
            started, ended: When, in nanoseconds of `time.monotonic_ns`'s clock.
            why_broken: Why the device cannot be used any more.
        """
        worker = run.worker
        with self._lock:
            if run not in worker.runs:
                self._refill(worker)
                return
            worker.runs.remove(run)
            group = self._groups.of(worker)
            group.counts.runs += worker.has_begun(run)
            others_broke_it = bool(group.broken)
            waited = len(self._waiting)
            if why_broken and not group.broken:
                self._break(group, why_broken)
            for request, answer in zip(run.requests, answers, strict=True):
                request.run = None
                if request.concluded:
                    continue
                if isinstance(answer, BaseException):
                    if (len(run.requests) > 1 or run.padded) and not group.broken:
                        self._waiting.put_back(request)  # which of them made it fail is found by running each alone
                    elif not (others_broke_it and self._retry(group, request)):
                        self._fail(group, request, answer, started, ended)
                else:
                    group.counts.done += 1
                    group.counts.record(request.submitted, started, ended)
                    request.outputs = answer
                    request.seconds = (ended - started) * 1e-9
                    self._conclude(request)
            if len(self._waiting) > waited:  # others can take what was put back, too
                self._give_out()
            self._refill(worker)

    def ready(self, worker: Worker) -> None:
        """The worker takes requests from now on."""
        with self._lock:
            worker.usable = True
            self._refill(worker)

    def lost(self, worker: Worker, error: Error) -> bool:
        """The worker's process has ended, and what it ran is not answered; it may be `ready` again later.

        Returns:
            Whether it ran something.
        """
        any_begun = False
        with self._lock:
            worker.usable = False
            runs, worker.runs = worker.runs, []
            group = self._groups.of(worker)
            now = time.monotonic_ns()
            for run in reversed(runs):  # so that the first comes to be the first of the queue
                begun = worker.has_begun(run)
                group.counts.runs += begun
                any_begun = any_begun or begun
                for request in reversed(run.requests):
                    request.run = None
                    if request.concluded:
                        continue
                    if not begun:
                        self._waiting.put_back(request)
                    elif not self._retry(group, request):
                        self._fail(group, request, error, request.submitted, now)
            self._give_out()
        return any_begun

    def restarted(self, worker: Worker) -> None:
        """Counts that the worker is started again."""
        with self._lock:
            self._groups.of(worker).counts.restarts += 1

    def gave_up(self, worker: Worker, reason: str) -> None:
        """The worker will not be ready again."""
        with self._lock:
            group = self._groups.of(worker)
            if worker in group.workers and len(group.workers) > 1:
                group.workers.remove(worker)
            elif not group.broken:
                self._break(group, reason)
            self._note_settled()

    # --- What it says of itself ---

    def stats(self) -> dict[str, Any]:
        """As the core's pool."""
        self.check_process()
        with self._lock:
            return {
                "devices": [
                    {**group.to_dict(), "waiting": self._waiting.of(group.device) + group.staged()}
                    for group in self._groups
                ],
                "waiting": self._waiting.of(""),
                "rejected": self._admission.rejected,
                "cancelled_waiting": self._cancelled_waiting,
                "failed_waiting": self._failed_waiting,
            }

    @property
    def closed(self) -> bool:
        """Whether `close` was called in this process."""
        return self.is_here and self._closing

    @property
    def freed(self) -> bool:
        """Whether `close` has returned, and not by an exception."""
        return self._freed

    def close(self, cancel_waiting: bool, patience: float | None = None) -> None:
        """As `Engine.close`.

        Args:
            patience: Seconds after which those who still wait get a ClosedError, and sessions that run on are left or
                killed; None: as long as it takes.
        """
        if not self.is_here:
            return
        with self._close_lock:
            if self._freed:
                return
            with self._lock:
                self._closing = True
                self._admission.note()
                if cancel_waiting:
                    self._end_all(begun=False)
                self._waiting.hurry = True
                self._give_out()
                if not self._settled.wait_for(self._is_settled, patience):
                    self._end_all(begun=True)
                timers = self._timers.stop()
            for worker in self.workers:
                worker.stop(patience)
            if timers is not None:
                timers.join()
            self.deliveries.put(None)
            self._freed = True

    # --- With the lock held ---

    def _check_accepted(self, request: Request) -> None:
        if self._closing:
            raise ClosedError("the pool is closed")
        self._groups.check(request)

    def _give(self, worker: Worker, requests: list[Request]) -> None:
        run = Run(requests, worker)
        worker.runs.append(run)
        worker.begin(run)

    def _refill(self, worker: Worker) -> None:
        """Gives the worker what waits, and tells those who wait for that."""
        group = self._groups.of(worker)
        while worker.usable and not group.broken and len(worker.runs) < worker.capacity and len(self._waiting):
            requests = self._waiting.take(worker.device, time.monotonic_ns())
            if not requests:
                break
            self._give(worker, requests)
        self._admission.note()
        self._note_settled()

    def _give_out(self) -> None:
        for worker in sorted(self.workers, key=lambda worker: len(worker.runs)):
            self._refill(worker)

    def _forget(self, run: Run) -> None:
        run.worker.runs.remove(run)
        self._refill(run.worker)

    def _retry(self, group: Group, request: Request) -> bool:
        """Has another worker try it, at most once; False where there is none."""
        if request.retried or not self._groups.any_usable(request):
            return False
        request.retried = True
        group.counts.retried += 1
        self._waiting.put_back(request)
        return True

    def _abandon(self, request: Request, deadline: DeadlineExceeded | None) -> None:
        """Concludes a request whose answer is not wanted any more: cancelled, or with that error."""
        run = request.run
        if self._waiting.remove(request) or run is None or not run.worker.has_begun(run):
            if deadline is None:
                self._cancelled_waiting += 1
            else:
                self._failed_waiting += 1
        else:
            counts = self._groups.of(run.worker).counts
            if deadline is None:
                counts.cancelled += 1
            else:
                counts.failed += 1
        request.error = deadline or Error("the request was cancelled")
        request.cancelled = deadline is None
        self._conclude(request)
        if run is not None and run in run.worker.runs and not run.wanted:
            run.worker.end_early(run)
        self._admission.note()
        self._note_settled()

    def _due(self, request: Request | None) -> None:
        if request is None:  # a batch has waited long enough
            self._give_out()
        elif not request.concluded:
            ms = int((request.timeout or 0) * 1000)
            waits = request in self._waiting or request.run is None or not request.run.worker.has_begun(request.run)
            what = "still waited for a session after" if waits else "was not answered within"
            self._abandon(request, DeadlineExceeded(f"the request {what} {ms} ms"))

    def _fail(self, group: Group, request: Request, error: BaseException, started: int, ended: int) -> None:
        group.counts.failed += 1
        group.counts.record(request.submitted, started, ended)
        request.error = error
        self._conclude(request)

    def _break(self, group: Group, reason: str) -> None:
        """Takes a device out."""
        group.broken = reason
        left = any(not other.broken for other in self._groups)
        for request in self._waiting.take_all(group.device if left else None):
            self._failed_waiting += 1
            request.error = DeviceError(f"{group.device} was taken out of the pool: {reason}")
            self._conclude(request)
        self._admission.note()

    def _end_all(self, begun: bool) -> None:
        """Cancels what has not begun, and with ``begun`` fails what has."""
        given = [request for worker in self._workers for run in worker.runs for request in run.requests]
        for request in [*self._waiting.take_all(), *given]:
            run = request.run
            running = run is not None and run.worker.has_begun(run)
            if request.concluded or (running and not begun):
                continue
            self._cancelled_waiting += not running
            if running and run is not None:
                self._groups.of(run.worker).counts.failed += 1
            request.cancelled = not running
            request.error = ClosedError(
                f"the pool was closed before the request {'was answered' if running else 'began'}"
            )
            self._conclude(request)
            if run is not None:
                run.worker.end_early(run)

    def _conclude(self, request: Request) -> None:
        request.concluded = True
        self._timers.drop(request)
        notify, request.notify = request.notify, None
        if notify is not None:
            notify(request)

    def _is_settled(self) -> bool:
        return not len(self._waiting) and not any(run.wanted for worker in self.workers for run in worker.runs)

    def _note_settled(self) -> None:
        if self._closing and self._is_settled():
            self._settled.notify_all()

    def _repair(self, request: Request) -> None:
        """After an exception that may have come anywhere in `submit`: nobody waits for the request."""
        with self._lock:
            run = request.run
            if run is not None and run in run.worker.runs and not run.taken:
                run.worker.begin(run)  # again: a worker takes up a run once
            if not request.concluded:
                request.notify = None
                self._abandon(request, None)
