"""Do the thread settings of ONNX Runtime's documentation do on this machine's CPU what it says?

Onnxruntime's own sessions with numbers of intra-op threads, spinning with its time and backoff, and the parallel
execution mode: a run's time and processor time, over the default's in the same round, and the threads that are started
and bound to some of the process's processors. `--config NAME=VALUE` adds a case with this configuration entry, such as
`session.intra_op_thread_affinities`.

    python -m benchmarks.thread_settings resnet50 tiny-kernels
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import graphs
from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure import machine
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option
from ortmulti.bench.strategies import SessionSettings
from ortmulti.bench.strategies.onnxruntime_sessions import create_session, open_package

SPIN = {"session.intra_op.spin_duration_us": "1000"}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "no spinning": {"entries": {"session.intra_op.allow_spinning": "0"}},
    "spinning for 1 ms": {"entries": SPIN},
    "spinning for 1 ms, backoff 8": {"entries": {**SPIN, "session.intra_op.spin_backoff_max": "8"}},
    "parallel": {"parallel": True},
}


@dataclass(frozen=True)
class Case:
    """A model, and a setting."""

    model: Path
    setting: str


@dataclass
class ThreadSettings(Script[Case]):
    """The options of the command line."""

    kind, columns = "thread settings", (
        Column("run", "run, ms", scale=1e-3),
        Column("cpu", "processor time, ms", scale=1e-3),
        Column("run_over", "run", summary=None),
        Column("cpu_over", "processor time", summary=None),
        Column("threads", "threads"),
        Column("bound", "bound"),
    )  # fmt: skip
    models: Sequence[Path] = option((), "names of `ortmulti models`, or .onnx files; 16 branches are measured besides")
    config: str = option("", "a configuration entry of one more case")
    seconds: float = option(1.0, "of a measurement")
    repeat: int = option(5, "rounds")

    def __post_init__(self) -> None:
        counts = (1, machine.describe_cpu()["usable_physical_cores"])
        self._settings = {**SETTINGS, **{f"{count} threads": {"threads": count} for count in counts}}
        if self.config:
            name, _, value = self.config.partition("=")
            self._settings[self.config] = {"entries": {name: value}}

    def cases(self, number: int = 0) -> Sequence[Case]:
        return [Case(model, name) for model in (*self.models, Path("branches")) for name in self._settings]

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._branches = folder / "branches.onnx"
        self._branches.write_bytes(graphs.branches())

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        given = {"threads": 0, "entries": {}, "parallel": False, **self._settings[case.setting]}
        model = self._branches if case.model == Path("branches") else case.model
        return self.fresh({**given, "model": str(model), "seconds": self.seconds})

    def beside(self, case: Case, good: Sequence[Json], rounds: Sequence[Mapping[Case, Json]]) -> dict[str, Any]:
        return {f"{key}_over": self.over(case, Case(case.model, "default"), rounds, key) for key in ("run", "cpu")}


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Create a session and run it again and again, in this process.

    Returns:
        Seconds: "run" (the median), "cpu" (processor time of the process for a run). "threads": how many the creation
        has started, and "bound": how many of them may run on fewer processors than the process.
    """
    feeds = models.sample_inputs(spec["model"])
    settings = SessionSettings(spec["threads"], config_entries=spec["entries"])
    onnxruntime = open_package(["cpu"])
    mode = onnxruntime.ExecutionMode(int(spec["parallel"]))
    before = _threads()
    session = create_session(onnxruntime, spec["model"], "cpu", settings, execution_mode=mode)
    started = [processors for name, processors in _threads().items() if name not in before]
    session.run(None, feeds)
    times, cpu = [time.perf_counter()], time.process_time()
    while times[-1] < times[0] + spec["seconds"]:
        session.run(None, feeds)
        times.append(time.perf_counter())
    cpu = (time.process_time() - cpu) / (len(times) - 1)
    allowed = len(os.sched_getaffinity(0))
    return {
        "run": statistics.median(after - before for before, after in itertools.pairwise(times)),
        "cpu": cpu,
        "threads": len(started),
        "bound": sum(processors < allowed for processors in started),
    }


def _threads() -> dict[str, int]:
    """Return this process's threads, each with the number of processors on which it may run."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            status = (task / "status").read_text()
        except OSError:  # it has just ended
            continue
        match = re.search(r"(?m)^Cpus_allowed:\t(.*)$", status)
        found[task.name] = int(match[1].replace(",", ""), 16).bit_count() if match else 0
    return found


if __name__ == "__main__":
    sys.exit(script.main(ThreadSettings))
