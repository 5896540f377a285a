"""The workers of each device, and which of them is next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ortmulti._core import LatencyHistogram
from ortmulti.errors import DeviceError, InvalidArgument
from ortmulti.pool.external.requests import Request, Worker

__all__ = ["Group", "Groups"]


class DeviceCounts:
    """What became of the requests that ran on one device."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.cancelled = 0
        self.retried = 0
        self.runs = 0
        self.restarts = 0
        self.queue = LatencyHistogram()
        self.run = LatencyHistogram()
        self.total = LatencyHistogram()

    def record(self, submitted: int, started: int, ended: int) -> None:
        """Adds a request's times, all on `time.monotonic_ns`'s clock."""
        self.queue.record(started - submitted)
        self.run.record(ended - started)
        self.total.record(ended - submitted)

    def to_dict(self) -> dict[str, Any]:
        """As the core's pool has it."""
        counts = {name: getattr(self, name) for name in ("done", "failed", "cancelled", "retried", "runs", "restarts")}
        return {**counts, **{name: getattr(self, name).to_dict() for name in ("queue", "run", "total")}}


class Group:
    """The workers of one device. Guarded by the dispatcher's lock.

    Attributes:
        broken: Why the device was taken out; empty where it was not.
        counts: What became of its requests.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.workers: list[Worker] = []
        self.broken = ""
        self.counts = DeviceCounts()

    def load(self) -> float:
        """How many runs each worker has."""
        return sum(len(worker.runs) for worker in self.workers) / len(self.workers)

    def staged(self) -> int:
        """How many requests workers have and did not begin, behind others."""
        return sum(
            not request.concluded
            for worker in self.workers
            for run in worker.runs[1:]
            if not worker.has_begun(run)
            for request in run.requests
        )

    def to_dict(self) -> dict[str, Any]:
        """As the core's pool has it, without what waits."""
        return {
            "device": self.device,
            "sessions": len(self.workers),
            "busy": sum(any(map(worker.has_begun, worker.runs)) for worker in self.workers),
            "broken": self.broken,
            **self.counts.to_dict(),
        }


class Groups:
    """All groups, in the order in which their first workers were added. Guarded by the dispatcher's lock."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._next = 0

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def add(self, worker: Worker) -> None:
        """Adds a worker to its device's group."""
        self._groups.setdefault(worker.device, Group(worker.device)).workers.append(worker)

    def of(self, worker: Worker) -> Group:
        """The worker's group."""
        return self._groups[worker.device]

    def that_may_run(self, request: Request) -> list[Group]:
        """Those of the devices where it may run."""
        return [group for group in self if request.device in ("", group.device)]

    def check(self, request: Request) -> None:
        """Raises InvalidArgument or DeviceError where no worker will take it."""
        groups = self.that_may_run(request)
        if not groups:
            raise InvalidArgument(f"the pool has no session on {request.device}")
        if all(group.broken for group in groups):
            reasons = "; ".join(f"{group.device}: {group.broken}" for group in groups)
            raise DeviceError(f"the pool has no session left that could run this: {reasons}")

    def any_usable(self, request: Request) -> bool:
        """Whether any worker could run it now, or when it has done what it does."""
        groups = [group for group in self.that_may_run(request) if not group.broken]
        return any(worker.usable for group in groups for worker in group.workers)

    def staged(self) -> int:
        """As `Group.staged`, of all."""
        return sum(group.staged() for group in self)

    def choose(self, request: Request) -> Worker | None:
        """The worker with the least to do, of the device with the smallest part of its sessions busy; None where all
        have as much as they take."""
        best: Worker | None = None
        best_load = (0, 0.0)
        best_place = 0
        groups = list(self)
        for index in range(len(groups)):
            place = (self._next + index) % len(groups)
            group = groups[place]
            if group.broken or request.device not in ("", group.device):
                continue
            usable = [worker for worker in group.workers if worker.usable and len(worker.runs) < worker.capacity]
            if not usable:
                continue
            worker = min(usable, key=lambda worker: len(worker.runs))
            load = (len(worker.runs), group.load())
            if best is None or load < best_load:
                best, best_load, best_place = worker, load, place
        if best is not None:
            self._next = best_place + 1
        return best
