"""The arguments of a diagnosis, and its bench: one measurement after the other, each in a fresh process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ortmulti.bench.measure import fresh_process
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.strategies import SessionSettings, check_name, names
from ortmulti.devices.device import name_devices
from ortmulti.errors import Error, InvalidArgument, NoSuchFile

BUDGET_SECONDS = 50.0
QUICK_SECONDS = 20.0
REPEAT = 5
_PARTS_OF_BUDGET = {"traces": 0.5, "experiments": 0.75}


@dataclass(frozen=True)
class DiagnosisPlan:
    """The arguments of `diagnose`.

    Attributes:
        devices: one for each session; None: every GPU, or the CPU on a machine without NVIDIA hardware.
        settings: fields of `SessionSettings` that every session gets; the threads default to the cores divided by the
            sessions.
    """

    model: Path
    devices: tuple[str, ...] | None = None
    ways: Sequence[str] = field(default_factory=names)
    repeat: int = REPEAT
    budget: float = BUDGET_SECONDS
    quick: bool = False
    batch: int = 1
    sequence: int = 16
    inputs: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidArgument: an unknown way, device or setting, or a wrong number.
            NoSuchFile: the model does not exist.
        """
        if not self.ways:
            raise InvalidArgument(f"no way to create sessions was named; there are {', '.join(names())}")
        for way in self.ways:
            check_name(way)
        if len(set(self.ways)) < len(self.ways):
            raise InvalidArgument(f"a way is named twice: {', '.join(self.ways)}")
        if self.devices is not None:
            name_devices(self.devices)
        for what in ("budget", "timeout"):
            value = getattr(self, what)
            if not (math.isfinite(value) and value > 0):
                raise InvalidArgument(f"{what} is a number of seconds above 0, not {value}")
        for what in ("repeat", "batch", "sequence"):
            if getattr(self, what) < 1:
                raise InvalidArgument(f"{what} is at least 1, not {getattr(self, what)}")
        unknown = set(self.settings) - set(SessionSettings.__dataclass_fields__)
        if unknown:
            known = ", ".join(SessionSettings.__dataclass_fields__)
            raise InvalidArgument(f"unknown settings {', '.join(sorted(unknown))}; there are {known}")
        if not self.model.is_file():
            raise NoSuchFile(f"model {self.model} does not exist")

    def settings_for(self, devices: Sequence[str], cores: int) -> dict[str, Any]:
        """Return the settings of sessions side by side on `devices`, as the fields of `SessionSettings`."""
        shared = SessionSettings.side_by_side(devices, cores)
        return {"intra_op_num_threads": shared.intra_op_num_threads, **self.settings}

    def part_of_budget(self, part: str) -> float:
        """Return seconds after the beginning until which a part of the diagnosis may begin something."""
        return self.budget * _PARTS_OF_BUDGET.get(part, 1.0)


# Where ortmulti keeps optimized models.
CACHE_VARIABLE = "ORTMULTI_CACHE"


class EndedError(Exception):
    """The diagnosis cannot go on; the text says why, for its reader."""


@dataclass
class Bench:
    """The measurements of one diagnosis.

    Attributes:
        plan: what to measure.
        devices: one for each session.
        cores: that this process may use.
        files: the model's.
        feeds: an .npz file with the inputs.
        cache: a folder for the model's optimized forms alone.
        progress: called before each measurement with the number of finished ones, an estimate of all, and a text.
        check_devices: raises `EndedError` if a device is no longer there.
        held_open_helps: whether a GPU has no persistence mode. Then the driver is unloaded between processes.
        runs: the measured runs of the document.
    """

    plan: DiagnosisPlan
    devices: tuple[str, ...]
    cores: int
    files: tuple[Path, ...]
    feeds: Path
    cache: Path
    progress: Callable[[int, int, str], None]
    check_devices: Callable[[], None]
    held_open_helps: bool = False
    begin: float = field(default_factory=time.monotonic)
    runs: list[dict[str, Any]] = field(default_factory=list)
    _worked: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    _failures: int = 0
    _done: int = 0

    def elapsed(self) -> float:
        """Return seconds since the diagnosis began."""
        return time.monotonic() - self.begin

    def say(self, text: str) -> None:
        """Report the progress and the next step."""
        repetitions = 1 if self.plan.quick else 2
        expected = 3 + 3 * repetitions * len(self.plan.ways) + 20 * repetitions
        self.progress(self._done, max(expected, self._done + 1), text)
        self._done += 1

    def trace(
        self,
        way: str,
        devices: Sequence[str],
        *,
        cache: Literal["warm", "cold"] = "warm",
        experiment: str = "trace",
        model: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        counted: bool = True,
        instrumented: bool = True,
    ) -> dict[str, Any]:
        """Trace a start as `ortmulti.bench.diagnose.trace.trace` does.

        Args:
            way, devices, cache, experiment, instrumented: see there.
            model: in place of the plan's.
            settings: changes of the session settings.
            environment: variables to set besides.
            counted: whether the run becomes part of the document.

        Returns:
            The run; with "error" if it failed.

        Raises:
            EndedError: a device is gone, or a way that worked before fails repeatedly.
        """
        from ortmulti.bench.diagnose.trace import trace

        chosen = {**self.plan.settings_for(devices, self.cores), **(settings or {})}
        what = "" if experiment == "trace" else f"{experiment}, "
        cold = ", cold page cache" if cache == "cold" else ""
        self.say(f"{'' if counted else 'uncounted: '}{what}{way} on {describe(devices)}{cold}")

        def run() -> dict[str, Any]:
            return trace(
                model or self.plan.model,
                way,
                devices,
                settings=SessionSettings(**chosen),
                cache=cache,
                feeds=self.feeds,
                timeout=self.plan.timeout,
                environment={CACHE_VARIABLE: str(self.cache), **(environment or {})},
                instrumented=instrumented,
                experiment=experiment,
            )

        return self._keep(run, counted, experiment, way, devices, cache=cache, settings=chosen)

    def experiment(
        self, name: str, work: Callable[[], Any], *, way: str, devices: Sequence[str], **fields: Any
    ) -> dict[str, Any]:
        """Run an experiment; its answer is the run's "measured".

        Args:
            name: the experiment's.
            work: measures.
            way, devices: the way and the devices of the experiment.
            fields: further fields of the run.

        Returns:
            The run; with "error" if it failed.

        Raises:
            EndedError: as `trace`.
        """
        self.say(f"{name}, {way} on {', '.join(devices)}" if len(devices) < 5 else f"{name}, {way}")
        return self._keep(lambda: {"measured": work()}, True, name, way, devices, **fields)

    def fresh(self, module: str, environment: Mapping[str, str] | None = None, **spec: Any) -> Any:
        """Return the answer of a module's `measure` to a spec, in a fresh process with these variables besides."""
        return fresh_process.run(module, spec, self.plan.timeout, environment)

    def probe(self, name: str, **spec: Any) -> Any:
        """Return the answer of one of `ortmulti.bench.diagnose.probes`, in a fresh process."""
        return self.fresh("ortmulti.bench.diagnose.probes", probe=name, **spec)

    def _keep(
        self,
        run: Callable[[], dict[str, Any]],
        counted: bool,
        experiment: str,
        way: str,
        devices: Sequence[str],
        **fields: Any,
    ) -> dict[str, Any]:
        described = {"experiment": experiment, "way": way, "devices": list(devices), "cache": "warm", "settings": {}}
        described |= fields
        try:
            result = run()
        except Error as error:  # of the measuring process, or of the page cache
            result = {"error": str(error) or type(error).__name__}
        result = {**described, **result, **described}  # the run's own names of these hold
        if counted:
            result["id"] = f"{experiment}-{len(self.runs) + 1}"
            self.runs.append(result)
        if "error" not in result:
            self._worked.add((way, tuple(devices)))
            self._failures = 0
            return result
        self.check_devices()
        if (way, tuple(devices)) in self._worked:
            self._failures += 1
            if self._failures >= 2:
                where = ", ".join(dict.fromkeys(devices))
                raise EndedError(f"{way} on {where} worked before and does not any more: {result['error']}")
        return result
