"""How long things took, in a fixed size, and what a device's share of a pool's work is."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

__all__ = ["DeviceCounts", "LatencyHistogram"]

# Buckets whose width is at most 1/32 of what they hold, up to 2^45 ns: those of the core's pool.
_SUB_BITS = 5
_MOST = 2**45 - 1


class LatencyHistogram:
    """Counts of durations in nanoseconds; quantiles are right to 3%. Not for several threads at once."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._count = 0
        self._sum = 0
        self._max = 0

    def record(self, nanoseconds: int) -> None:
        """Below 0 counts as 0, above 9 hours as 9 hours."""
        kept = min(max(nanoseconds, 0), _MOST)
        shift = max(kept.bit_length() - _SUB_BITS - 1, 0)
        # The bucket is named by its upper bound.
        self._counts[(((kept >> shift) + 1) << shift) - 1] += 1
        self._count += 1
        self._sum += kept
        self._max = max(self._max, kept)

    def quantile(self, q: float) -> int:
        """The nanoseconds that the part ``q`` of them did not exceed; 0 where nothing was recorded."""
        rank = max(1, math.ceil(q * self._count))
        seen = 0
        for bound in sorted(self._counts):
            seen += self._counts[bound]
            if seen >= rank:
                return min(self._max, bound)
        return self._max

    def to_dict(self) -> dict[str, Any]:
        """As the core's pool has it, in seconds."""
        quantiles = {
            name: self.quantile(q) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
        }
        times = {"sum": self._sum, "max": self._max, **quantiles}
        return {"count": self._count, **{name: value * 1e-9 for name, value in times.items()}}


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
