"""What a device's share of a pool's work is."""

from __future__ import annotations

from typing import Any

from ortmulti._core import LatencyHistogram

__all__ = ["DeviceCounts", "LatencyHistogram"]


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
        self.whole = LatencyHistogram()

    def record(self, asked: int, started: int, ended: int) -> None:
        """Adds a request's times, all on `time.monotonic_ns`'s clock."""
        self.queue.record(started - asked)
        self.run.record(ended - started)
        self.whole.record(ended - asked)

    def to_dict(self) -> dict[str, Any]:
        """As the core's pool has it."""
        counts = {name: getattr(self, name) for name in ("done", "failed", "cancelled", "retried", "runs", "restarts")}
        return {**counts, **{name: getattr(self, name).to_dict() for name in ("queue", "run", "whole")}}
