"""Measures a model with options, in a process that stays or in a new one each time."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ortmulti._runtime.child_process import ChildProcess
from ortmulti._runtime.closing import Closing
from ortmulti.bench.tune import outputs
from ortmulti.bench.tune.space import DEFAULTS, Objective, Options, RejectedError, Through
from ortmulti.errors import Fail

_LEAST_TIMEOUT = 20.0
_TIMEOUT_FACTOR = 10.0
_CODE = "from ortmulti.bench.tune.candidate import main; main()"

Measure: TypeAlias = Callable[[], float]
"""Measures a candidate once: seconds per request, seconds to the first answer, or bytes; less is better."""


class CandidateProcess(Closing):
    """A process of `ortmulti.bench.tune.candidate`. Closing ends it with all of its children.

    Args:
        spec: The spec for the process.
        environment: Variables to set, besides this process's own.
        timeout: Seconds for the start, and for each block. After that the process counts as hung.
        log: The file for its output.

    Attributes:
        first: Its first answer.

    Raises:
        RejectedError: It failed, died or took too long.
    """

    def __init__(self, spec: Mapping[str, Any], environment: Mapping[str, str], timeout: float, log: Path) -> None:
        self._log, self._timeout = log, timeout
        self._channel, for_child = socket.socketpair()
        self._channel.settimeout(timeout)
        self._answers = self._channel.makefile("rb")
        with for_child, log.open("wb") as output:
            number = for_child.fileno()
            arguments = [str(number), json.dumps(spec)]
            self._process = ChildProcess(_CODE, arguments, output=output, environment=environment, descriptors=[number])
        self.first = self._answer()

    def block(self) -> float:
        """Measure once and return the cost.

        Raises:
            RejectedError: It failed, died or took too long.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # of one that has died, the answer is missing
            self._channel.sendall(b".")
        return float(self._answer()["cost"])

    def close(self) -> None:
        """End the process. A second call does nothing."""
        if not self._answers.closed:
            self._answers.close()
            self._channel.close()
            self._process.kill_group()

    def _answer(self) -> dict[str, Any]:
        with contextlib.ExitStack() as failed:
            failed.push(self)
            try:
                answer: dict[str, Any] = pickle.load(self._answers)
            except TimeoutError:
                raise RejectedError("hung", f"did not answer within {self._timeout:.3g} seconds") from None
            except (EOFError, ConnectionResetError, pickle.UnpicklingError):
                ended = self._process.wait(self._timeout)
                how = f"the process {self._process.ending(self._log)}" if ended else "closed its socket and went on"
                raise RejectedError("crashed", how) from None
            if "error" in answer:
                raise RejectedError("failed", answer["error"])
            failed.pop_all()
        return answer


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


class Bench:
    """Measures candidates of one job.

    Args:
        job: The job to measure.
        folder: A folder only for this object's files.
        feeds: An .npz file with the inputs; None: random ones that fit the model's declaration.

    Attributes:
        differences: How a candidate's outputs differ from the defaults'.
        gpu_memory: Bytes that the defaults use on the GPU where they use most; None: there is no GPU.
        repeats: How the outputs of the defaults differ from run to run.

    Raises:
        Fail: The model cannot be run with the defaults.
    """

    def __init__(self, job: Job, folder: Path, feeds: Path | None) -> None:
        self.job = job
        self.differences: dict[Options, outputs.Difference] = {}
        self._folder = folder
        self._feeds = feeds or folder / "feeds.npz"
        self._numbers = itertools.count()
        self._timeout = job.timeout or 600.0
        begin = time.monotonic()
        defaults = self._probe()
        took = time.monotonic() - begin
        self._expected = defaults["outputs"]
        self.repeats = self._compare(self._probe())
        self.gpu_memory: int | None = max(defaults["gpu_memory"].values(), default=None)
        if job.timeout is None:
            self._timeout = max(_LEAST_TIMEOUT, _TIMEOUT_FACTOR * took)

    def _probe(self) -> Mapping[str, Any]:
        with self._named(DEFAULTS), self._start(DEFAULTS, "memory") as process:
            return process.first

    def _compare(self, first: Mapping[str, Any]) -> outputs.Difference:
        return outputs.compare(self._expected, first["outputs"], self.job.tolerance, self.job.on_gpu)

    @contextlib.contextmanager
    def candidate(self, options: Options) -> Iterator[Measure]:
        """Yield the function that measures a candidate; its process, if it stays, ends with the block.

        Raises:
            RejectedError: The candidate cannot be used. The function raises it, too.
            Fail: The same for the defaults.
        """
        if self.job.objective in ("latency", "throughput"):
            with self._checked(options) as staying:

                def measure() -> float:
                    with self._named(options):
                        return staying.block()

                yield measure
        else:
            yield lambda: self._cost(options)

    def _cost(self, options: Options) -> float:
        with self._checked(options) as process:
            first = process.first
        if self.job.objective == "creation":
            return float(first["first_answer"])
        used = sum(first["gpu_memory"].values()) if self.job.on_gpu else first["pss"]
        # Growth may be lost in what others do.
        return float(max(1, used))

    @contextlib.contextmanager
    def _named(self, options: Options) -> Iterator[None]:
        try:
            yield
        except RejectedError as error:
            if options == DEFAULTS:
                name = Path(self.job.model).name
                raise Fail(f"{name} cannot be run with the defaults: {error}") from error
            raise

    def _checked(self, options: Options) -> CandidateProcess:
        """Start a process whose first outputs are those of the defaults."""
        with self._named(options):
            process = self._start(options, self.job.objective)
            self.differences[options] = difference = self._compare(process.first)
            if not difference.allowed and self.repeats.allowed and options != DEFAULTS:
                process.close()
                raise RejectedError("outputs", difference.text)
        return process

    def _start(self, options: Options, measure: Objective) -> CandidateProcess:
        spec = {
            **asdict(self.job),
            "options": dict(options),
            "feeds": str(self._feeds),
            "measure": measure,
            "spawned": time.monotonic(),
        }
        # Loads of candidates shall not fill the user's cache of optimized models.
        environment = {"ORTMULTI_CACHE": str(self._folder / "cache")}
        return CandidateProcess(spec, environment, self._timeout, self._folder / f"{next(self._numbers)}.log")
