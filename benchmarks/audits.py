"""What do audits and the verdict on rows cost: answers a second, p99, and the time of a load?

In turns, for each model: loads without batching, with `Batching`, and with `Batching(trust=True)`, which has neither
audits nor a verdict. Pools of the latter two answer --clients clients in a closed loop.

    python -m benchmarks.audits encoder resnet50 --json audits.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import Batching
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, highest, option
from ortmulti.bench.serve.clients import ClosedLoop, closed_loop
from ortmulti.create.sample_inputs import sample_inputs

LOADS: dict[str, dict[str, Any]] = {"none": {}, "audited": {"trust": False}, "trusted": {"trust": True}}


@dataclass(frozen=True)
class Case:
    """A model, and one of `LOADS`."""

    model: Path
    batching: str


@dataclass
class Audits(Script[Case]):
    """The options of the command line."""

    kind, columns = "audits", (
        Column("load", "load, s"),
        Column("rate", "answers/s"),
        Column("p99", "p99, ms", scale=1e-3),
        Column("rate_over", "rate / trusted", summary=None),
        Column("p99_over", "p99 / trusted", summary=None),
        Column("audits", "audits", summary=highest),
        Column("audit_differences", "differences", summary=highest),
        Column("share_of_time", "share of time", summary=highest),
    )  # fmt: skip
    models: Sequence[Path] = option((), "names of `ortmulti models`, or .onnx files")
    device: str = option("cpu", "device")
    max_size: int = option(16, "of a batch")
    clients: int = option(32, "clients of each pool")
    sequence: int = option(16, "of open dimensions")
    repeat: int = option(5, "rounds")
    seconds: float = option(3.0, "of each turn")

    def cases(self, number: int = 0) -> Sequence[Case]:
        return [Case(model, name) for model in self.models for name in LOADS]

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._pools: dict[Case, tuple[ortmulti.Pool, ClosedLoop]] = {}
        for case in self.cases():
            step(self.where(self.describe(case)))
            if case.batching != "none":
                pool = self.stack.enter_context(self._load(case))
                declared = pool.get_inputs()  # equal requests are not audited
                feeds = [sample_inputs(declared, 1, self.sequence, seed) for seed in range(self.clients)]
                loop = self.stack.enter_context(ClosedLoop([partial(pool.run, None, feed) for feed in feeds]))
                self._pools[case] = pool, loop
                loop.until_answered()
                loop.go_on(self.seconds)

    def _load(self, case: Case) -> ortmulti.Pool:
        given = LOADS[case.batching]
        return ortmulti.load(case.model, self.device, batching=Batching(self.max_size, **given) if given else None)

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        begin = time.perf_counter()
        with self._load(case):
            found: dict[str, Any] = {"load": time.perf_counter() - begin}
        if case in self._pools:
            pool, loop = self._pools[case]
            one = closed_loop((one for own in loop.answers for one in own), *loop.go_on(self.seconds))
            stats = pool.stats()
            found |= {"rate": one["throughput"], "p99": one["latency"]["p99"], "audits": stats.audits}
            found["audit_differences"] = stats.audit_differences
            found["share_of_time"] = stats.audit_seconds / ((number + 2) * self.seconds)
        return found

    def beside(self, case: Case, good: Sequence[Json], rounds: Sequence[Mapping[Case, Json]]) -> dict[str, Any]:
        trusted = Case(case.model, "trusted")
        return {f"{key}_over": self.over(case, trusted, rounds, key) for key in ("rate", "p99")}


if __name__ == "__main__":
    sys.exit(script.main(Audits))
