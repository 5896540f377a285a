"""Measures a model with options, in a process that stays or in a new one each time."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ortmulti._runtime.child_process import ChildProcess
from ortmulti.bench.measure import outputs
from ortmulti.bench.tune.space import DEFAULTS, Objective, Options, RejectedError, Why
from ortmulti.errors import Error, Fail

_LEAST_TIMEOUT = 20.0
_TIMEOUT_FACTOR = 10.0
_CODE = "from ortmulti.bench.tune.candidate import main; main()"

Measure: TypeAlias = Callable[[], float]
"""Measures a candidate once: seconds per request, seconds to the first answer, or bytes; less is better."""


@contextlib.contextmanager
def candidate_process(
    spec: Mapping[str, Any], environment: Mapping[str, str], timeout: float, log: Path
) -> Iterator[tuple[dict[str, Any], Measure]]:
    """Start a process of `ortmulti.bench.tune.candidate`, and end it with all of its children after the block.

    Yields its first answer, and the function that has it measure one more block of runs. Both raise `RejectedError` if
    it failed, died or took more than `timeout` seconds; `Fail` if it has the defaults. Its output is written to `log`.
    """

    def rejected(why: Why, text: str) -> Error:
        if spec["options"]:
            return RejectedError(why, text)
        return Fail(f"{Path(spec['model']).name} cannot be run with the defaults: {text}")

    channel, for_child = socket.socketpair()
    with channel, channel.makefile("rb") as answers:
        channel.settimeout(timeout)
        with for_child, log.open("wb") as output:
            number = for_child.fileno()
            arguments = [str(number), json.dumps(spec)]
            process = ChildProcess(_CODE, arguments, output=output, environment=environment, descriptors=[number])

        def answer() -> dict[str, Any]:
            try:
                found: dict[str, Any] = pickle.load(answers)
            except TimeoutError:
                raise rejected("hung", f"did not answer within {timeout:.3g} seconds") from None
            except (EOFError, ConnectionResetError, pickle.UnpicklingError):
                ended = process.wait(timeout)
                how = f"the process {process.ending(log)}" if ended else "closed its socket and went on"
                raise rejected("crashed", how) from None
            if "error" in found:
                raise rejected("failed", found["error"])
            return found

        def block() -> float:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died: the answer is missing
                channel.sendall(b".")
            return float(answer()["cost"])

        try:
            yield answer(), block
        finally:
            process.kill_group()


class Bench:
    """Measures candidates.

    Args:
        spec: What is measured: "model" (a path), "devices" such as ``["cuda:0", "cuda:1"]``, "objective" and "through"
            as for `ortmulti.tune`, "clients", "block_seconds".
        folder: A folder only for this object's files. Its feeds.npz has the inputs; if there is none, they are random.
        tolerance: Largest difference of floats from the defaults' outputs; None: by dtype.
        timeout: Seconds for a start and for a measurement; None: ten times the time of the defaults, at least 20.

    Raises:
        Fail: The model cannot be run with the defaults.
    """

    def __init__(
        self, spec: Mapping[str, Any], folder: Path, tolerance: float | None = None, timeout: float | None = None
    ) -> None:
        self.spec, self.tolerance = spec, tolerance
        self.on_gpu = spec["devices"][0] != "cpu"
        self.differences: dict[Options, outputs.Difference] = {}  # of candidates from the defaults
        self._folder = folder
        self._numbers = itertools.count()
        self._timeout = timeout or 600.0
        begin = time.monotonic()
        with self._process(DEFAULTS, "memory") as (defaults, _):
            took = time.monotonic() - begin
        self._expected = defaults["outputs"]
        with self._process(DEFAULTS, "memory") as (again, _):
            self.repeats = self._compare(again)  # how the outputs of the defaults differ from run to run
        # Bytes that the defaults use on the GPU where they use most.
        self.gpu_memory: int | None = max(defaults["gpu_memory"].values(), default=None)
        if timeout is None:
            self._timeout = max(_LEAST_TIMEOUT, _TIMEOUT_FACTOR * took)

    def _compare(self, first: Mapping[str, Any]) -> outputs.Difference:
        return outputs.compare(self._expected, first["outputs"], self.tolerance, self.on_gpu)

    @contextlib.contextmanager
    def candidate(self, options: Options) -> Iterator[Measure]:
        """Yield the function that measures a candidate; its process, if it stays, ends with the block.

        Both raise `RejectedError` if the candidate cannot be used; `Fail` if it has the defaults.
        """
        if self.spec["objective"] in ("latency", "throughput"):
            with self._checked(options) as (_, block):
                yield block
        else:
            yield lambda: self._cost(options)

    def _cost(self, options: Options) -> float:
        with self._checked(options) as (first, _):
            if self.spec["objective"] == "creation":
                return float(first["first_answer"])
            used = sum(first["gpu_memory"].values()) if self.on_gpu else first["pss"]
            # Growth may be lost in what others do.
            return float(max(1, used))

    @contextlib.contextmanager
    def _checked(self, options: Options) -> Iterator[tuple[dict[str, Any], Measure]]:
        """Start a process whose first outputs are those of the defaults."""
        with self._process(options, self.spec["objective"]) as started:
            self.differences[options] = difference = self._compare(started[0])
            if not difference.allowed and self.repeats.allowed and options != DEFAULTS:
                raise RejectedError("outputs", difference.text)
            yield started

    def _process(
        self, options: Options, measure: Objective
    ) -> contextlib.AbstractContextManager[tuple[dict[str, Any], Measure]]:
        spec = {
            **self.spec,
            "options": dict(options),
            "feeds": f"{self._folder}/feeds.npz",
            "measure": measure,
            "spawned": time.monotonic(),
        }
        # Loads of candidates shall not fill the user's cache of optimized models.
        environment = {"ORTMULTI_CACHE": f"{self._folder}/cache"}
        return candidate_process(spec, environment, self._timeout, self._folder / f"{next(self._numbers)}.log")
