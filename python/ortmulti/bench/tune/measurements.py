"""Measures a model with options, in a process that stays or in a new one each time."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ortmulti.bench.tune import outputs
from ortmulti.bench.tune.process import CandidateProcess
from ortmulti.bench.tune.space import DEFAULTS, Objective, Options, RejectedError, Through
from ortmulti.errors import Fail

_LEAST_TIMEOUT = 20.0
_TIMEOUT_FACTOR = 10.0

Measure: TypeAlias = Callable[[], float]
"""Measures a candidate once: seconds per request, seconds to the first answer, or bytes; less is better."""


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
    """

    model: str
    devices: tuple[str, ...]
    objective: Objective
    through: Through
    clients: int
    block_seconds: float
    tolerance: float | None = None
    timeout: float | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether a device is a GPU."""
        return any(device != "cpu" for device in self.devices)

    @property
    def stays(self) -> bool:
        """Whether a candidate's process is measured more than once."""
        return self.objective in ("latency", "throughput")


class Bench:
    """Measures candidates of one job.

    Args:
        job: The job to measure.
        folder: A folder only for this object's files.
        feeds: An .npz file with the inputs; None: random ones that fit the model's declaration.

    Attributes:
        costs: Every measurement, by the candidate's options.
        differences: How a candidate's outputs differ from the defaults'.
        gpu_memory: Bytes that the defaults use on the GPU where they use most; None: there is no GPU.
        repeats: How the outputs of the defaults differ from run to run.

    Raises:
        Fail: The model cannot be run with the defaults.
    """

    def __init__(self, job: Job, folder: Path, feeds: Path | None) -> None:
        self.job = job
        self.costs: dict[Options, list[float]] = {}
        self.differences: dict[Options, outputs.Difference] = {}
        self._folder = folder
        self._feeds = feeds or folder / "feeds.npz"
        self._numbers = itertools.count()
        self._timeout = job.timeout or 600.0
        begin = time.monotonic()
        self._expected, defaults = self._probe()
        took = time.monotonic() - begin
        self.repeats = outputs.compare(self._expected, self._probe()[0], job.tolerance, job.on_gpu)
        self.gpu_memory: int | None = max(defaults["gpu_memory"].values(), default=None)
        if job.timeout is None:
            self._timeout = max(_LEAST_TIMEOUT, _TIMEOUT_FACTOR * took)

    @contextlib.contextmanager
    def candidate(self, options: Options) -> Iterator[Measure]:
        """Yield the function that measures a candidate; its process, if it stays, ends with the block.

        Raises:
            RejectedError: The candidate cannot be used. The function raises it, too.
            Fail: The same for the defaults.
        """
        if not self.job.stays:
            yield lambda: self._fresh(options)
            return
        with contextlib.ExitStack() as stack:
            # Not around the block: an error in there may be another candidate's.
            with self._named(options):
                process, path = stack.enter_context(self._process(options, self.job.objective))
                self._check(options, path)
            yield lambda: self._kept(options, process.block)

    def _fresh(self, options: Options) -> float:
        def measure() -> float:
            with self._process(options, self.job.objective) as (process, path):
                self._check(options, path)
                return _cost(self.job, process.first)

        return self._kept(options, measure)

    def _kept(self, options: Options, measure: Measure) -> float:
        with self._named(options):
            cost = measure()
        self.costs.setdefault(options, []).append(cost)
        return cost

    @contextlib.contextmanager
    def _named(self, options: Options) -> Iterator[None]:
        try:
            yield
        except RejectedError as error:
            if options == DEFAULTS:
                raise Fail(f"the model cannot be measured with the defaults: {error}") from error
            raise

    @contextlib.contextmanager
    def _process(self, options: Options, measure: Objective) -> Iterator[tuple[CandidateProcess, Path]]:
        """A new process, and the file with the outputs of its first runs."""
        path = self._folder / f"outputs{next(self._numbers)}.npz"
        job = self.job
        spec = {
            "model": job.model,
            "devices": list(job.devices),
            "options": dict(options),
            "through": job.through,
            "feeds": str(self._feeds),
            "measure": measure,
            "block_seconds": job.block_seconds,
            "clients": job.clients,
            "spawned": time.monotonic(),
            "outputs": str(path),
        }
        # Loads of candidates shall not fill the user's cache of optimized models.
        environment = {"ORTMULTI_CACHE": str(self._folder / "cache")}
        with CandidateProcess(spec, environment, self._timeout, path.with_suffix(".log")) as process:
            yield process, path

    def _probe(self) -> tuple[Path, Mapping[str, Any]]:
        try:
            with self._process(DEFAULTS, "memory") as (process, path):
                return path, process.first
        except RejectedError as error:
            raise Fail(f"{Path(self.job.model).name} cannot be run with the defaults: {error}") from error

    def _check(self, options: Options, path: Path) -> None:
        """Compare outputs with those of the defaults, and remove their file."""
        difference = outputs.compare(self._expected, path, self.job.tolerance, self.job.on_gpu)
        path.unlink()
        self.differences[options] = difference
        if not difference.allowed and self.repeats.allowed and options != DEFAULTS:
            raise RejectedError("outputs", difference.text)


def _cost(job: Job, measured: Mapping[str, Any]) -> float:
    if job.objective == "creation":
        return float(measured["first_answer"])
    used = sum(measured["gpu_memory"].values()) if job.on_gpu else measured["pss"]
    # Growth may be lost in what others do.
    return float(max(1, used))
