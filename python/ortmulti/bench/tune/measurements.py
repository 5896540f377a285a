"""Measures configurations, in processes that stay or in a new one each time."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti._runtime.closing import Closing
from ortmulti.bench.measure.machine import available_memory
from ortmulti.bench.tune import outputs
from ortmulti.bench.tune.process import CandidateProcess
from ortmulti.bench.tune.space import DEFAULTS, Configuration, Objective, RejectedError, Through, variables
from ortmulti.errors import Fail

_MOST_ALIVE = 16
_MEMORY_PART = 0.5
"""Of the free memory, that candidates may have together."""

_LEAST_TIMEOUT = 20.0
_TIMEOUT_FACTOR = 10.0


@dataclass(frozen=True)
class Job:
    """One job: a model, its devices and an objective.

    Attributes:
        model: Path of the model.
        devices: The sessions' devices, such as ``("cuda:0", "cuda:1")``.
        objective, through: As for `ortmulti.tune`.
        clients: Requests in flight, for ``"throughput"``.
        block_seconds: Seconds of one measurement, for ``"latency"`` and ``"throughput"``.
        tolerance: Largest difference of floats from the defaults' outputs; None: by dtype.
        timeout: Seconds for a start and for a measurement; None: ten times the time of the defaults, at least 20.
        environment: Variables for every candidate.
    """

    model: str
    devices: tuple[str, ...]
    objective: Objective
    through: Through
    clients: int
    block_seconds: float
    tolerance: float | None = None
    timeout: float | None = None
    environment: Mapping[str, str] | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether a device is a GPU."""
        return any(device != "cpu" for device in self.devices)


class Bench(Closing):
    """Measures configurations of one job. A context manager, which ends the processes.

    Args:
        job: The job to measure.
        folder: A folder only for this object's files.
        feeds: An .npz file with the inputs; None: random ones that fit the model's declaration.

    Raises:
        Fail: The model cannot be run with the defaults.
    """

    def __init__(self, job: Job, folder: Path, feeds: Path | None) -> None:
        self.job = job
        self._folder = folder
        self._feeds = feeds or folder / "feeds.npz"
        self._numbers = itertools.count()
        self._alive: OrderedDict[Configuration, tuple[CandidateProcess, Path]] = OrderedDict()
        self._checked: set[Configuration] = set()
        # Loads of candidates shall not fill the user's cache of optimized models.
        self._environment = {"ORTMULTI_CACHE": str(folder / "cache"), **(job.environment or {})}
        self.costs: dict[Configuration, list[float]] = {}
        """Every measurement."""
        self.differences: dict[Configuration, outputs.Difference] = {}
        """How the outputs differ from the defaults'."""
        self._timeout = job.timeout or 600.0
        begin = time.monotonic()
        self._expected, self.defaults = self._probe()
        took = time.monotonic() - begin
        again, _ = self._probe()
        self.repeats = outputs.compare(self._expected, again, job.tolerance, job.on_gpu)
        """How the outputs of the defaults differ from run to run."""
        if job.timeout is None:
            self._timeout = max(_LEAST_TIMEOUT, _TIMEOUT_FACTOR * took)
        self.most_alive = self._bound()
        """How many processes there may be at a time."""

    @property
    def stays(self) -> bool:
        """Whether a candidate's process is measured more than once."""
        return self.job.objective in ("latency", "throughput")

    def sample(self, configuration: Configuration) -> float:
        """Measure once: seconds per request, seconds to the first answer, or bytes.

        Raises:
            RejectedError: The configuration cannot be used.
        """
        if not self.stays:
            path, measured = self._fresh(configuration, self.job.objective)
            self._check(configuration, path)
            path.unlink(missing_ok=True)
            return self._kept(configuration, _cost(self.job, measured))
        self.prepare([configuration])
        process, path = self._alive[configuration]
        try:
            process.first()
            self._check(configuration, path)
            return self._kept(configuration, process.block())
        except RejectedError:
            self.release(configuration)
            raise

    def _kept(self, configuration: Configuration, cost: float) -> float:
        self.costs.setdefault(configuration, []).append(cost)
        return cost

    def prepare(self, configurations: Sequence[Configuration]) -> None:
        """Start the processes of these configurations at the same time, up to the limit, and return when they are
        ready.

        `sample` raises the error of a configuration that cannot be used.
        """
        if not self.stays:
            return
        wanted = list(dict.fromkeys(configurations))[: self.most_alive]
        for configuration in wanted:
            if configuration in self._alive:
                self._alive.move_to_end(configuration)
        for configuration in wanted:
            if configuration not in self._alive:
                while len(self._alive) >= self.most_alive:
                    self.release(next(iter(self._alive)))
                self._alive[configuration] = self._start(configuration)
        for configuration in wanted:
            with contextlib.suppress(RejectedError):
                self._alive[configuration][0].first()

    def release(self, configuration: Configuration) -> None:
        """End the configuration's process, if it exists."""
        found = self._alive.pop(configuration, None)
        if found is not None:
            found[0].close()
            found[1].unlink(missing_ok=True)

    def close(self) -> None:
        """End all processes."""
        while self._alive:
            self.release(next(iter(self._alive)))

    def _start(self, configuration: Configuration) -> tuple[CandidateProcess, Path]:
        spec, environment = self._spec(configuration, self.job.objective)
        path = Path(spec["outputs"])
        return CandidateProcess(spec, environment, self._timeout, path.with_suffix(".log")), path

    def _fresh(self, configuration: Configuration, measure: Objective) -> tuple[Path, dict[str, Any]]:
        spec, environment = self._spec(configuration, measure)
        path = Path(spec["outputs"])
        with CandidateProcess(spec, environment, self._timeout, path.with_suffix(".log")) as process:
            return path, process.first()

    def _spec(self, configuration: Configuration, measure: Objective) -> tuple[dict[str, Any], dict[str, str]]:
        options = configuration.options
        set_too = variables(options)
        # Libraries that are loaded into this process are loaded into that, too.
        if "LD_PRELOAD" in set_too and os.environ.get("LD_PRELOAD"):
            set_too["LD_PRELOAD"] += ":" + os.environ["LD_PRELOAD"]
        job = self.job
        return {
            "model": job.model,
            "devices": list(job.devices),
            "options": options,
            "through": job.through,
            "feeds": str(self._feeds),
            "measure": measure,
            "block_seconds": job.block_seconds,
            "clients": job.clients,
            "spawned": time.monotonic(),
            "outputs": str(self._folder / f"outputs{next(self._numbers)}.npz"),
        }, {**self._environment, **set_too}

    def _probe(self) -> tuple[Path, dict[str, Any]]:
        try:
            return self._fresh(DEFAULTS, "memory")
        except RejectedError as error:
            raise Fail(f"{Path(self.job.model).name} cannot be run with the defaults: {error}") from error

    def _check(self, configuration: Configuration, path: Path) -> None:
        """Compare its outputs with those of the defaults, once."""
        if configuration in self._checked:
            return
        difference = outputs.compare(self._expected, path, self.job.tolerance, self.job.on_gpu)
        self.differences[configuration] = difference
        if not difference.allowed and self.repeats.allowed and configuration != DEFAULTS:
            raise RejectedError("outputs", difference.text)
        self._checked.add(configuration)

    def _bound(self) -> int:
        """Return how many processes fit into the free memory."""
        most = _MOST_ALIVE
        if self.defaults["pss"] > 0:
            most = min(most, int(available_memory() * _MEMORY_PART / self.defaults["pss"]))
        for device, used in self.defaults["gpu_memory"].items():
            free = self.defaults["gpu_free"].get(device)
            if used > 0 and free is not None:
                most = min(most, int(free * _MEMORY_PART / used))
        return max(2, most)


def _cost(job: Job, measured: Mapping[str, Any]) -> float:
    if job.objective == "creation":
        return float(measured["first_answer"])
    used = sum(measured["gpu_memory"].values()) if job.on_gpu else measured["pss"]
    # Growth may be lost in what others do.
    return float(max(1, used))
