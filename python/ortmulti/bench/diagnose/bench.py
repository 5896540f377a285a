"""The bench of a diagnosis: one measurement after the other, each in a fresh process."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti.bench.measure import fresh_process
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.nvml import Nvml
from ortmulti.bench.strategies import SessionSettings
from ortmulti.errors import DeviceError, Error

_DEVICES_TIMEOUT = 120.0


class EndedError(Exception):
    """The diagnosis cannot go on; the text says why, for its reader."""


@dataclass(kw_only=True)
class Bench:
    """What one diagnosis measures, as `diagnose` was asked for it, and its runs so far.

    Attributes:
        devices: one for each session.
        files: the model's, its own first.
        folder: has the inputs, feeds.npz, and gets the model's optimized forms.
        progress: called before each measurement with the number of finished ones, an estimate of all, and a text.
        held_open_helps: whether a GPU has no persistence mode. Then the driver is unloaded between processes.
        runs: the measured runs of the document.
    """

    devices: tuple[str, ...]
    ways: Sequence[str]
    repeat: int
    budget: float
    quick: bool
    settings: Mapping[str, Any]
    timeout: float
    files: tuple[Path, ...]
    folder: Path
    progress: Callable[[int, int, str], None]
    held_open_helps: bool = False
    begin: float = field(default_factory=time.monotonic)
    runs: list[dict[str, Any]] = field(default_factory=list)
    _worked: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    _failures: int = 0
    _done: int = 0

    @property
    def model(self) -> Path:
        return self.files[0]

    def left(self, share: float = 1.0) -> float:
        """Return the seconds that are left of a share of the budget."""
        return share * self.budget - (time.monotonic() - self.begin)

    def settings_for(self, devices: Sequence[str]) -> dict[str, Any]:
        """Return the settings of sessions side by side on `devices`, as the fields of `SessionSettings`."""
        shared = SessionSettings.side_by_side(devices, _core.usable_cores())
        return {"intra_op_num_threads": shared.intra_op_num_threads, **self.settings}

    def say(self, text: str) -> None:
        """Report the progress and the next step."""
        repetitions = 1 if self.quick else 2
        expected = 3 + 3 * repetitions * len(self.ways) + 20 * repetitions
        self.progress(self._done, max(expected, self._done + 1), text)
        self._done += 1

    def trace(
        self,
        way: str,
        devices: Sequence[str],
        experiment: str = "trace",
        *,
        cache: str = "warm",
        model: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a start by `ortmulti.bench.diagnose.trace.trace`, and return its run; with "error" if it failed.

        The experiments "trace" and "uncounted" are instrumented; the latter becomes no part of the document. `settings`
        are changes. `EndedError`: a device is gone, or a way that worked before fails repeatedly.
        """
        from ortmulti.bench.diagnose.trace import trace

        chosen = {**self.settings_for(devices), **(settings or {})}
        start = functools.partial(
            trace,
            model or self.model,
            way,
            devices,
            settings=SessionSettings(**chosen),
            cache=cache,
            feeds=self.folder / "feeds.npz",
            timeout=self.timeout,
            environment={"ORTMULTI_CACHE": f"{self.folder}/cache", **(environment or {})},
            instrumented=experiment in ("trace", "uncounted"),
        )
        return self._keep(start, experiment, way, devices, cache=cache, settings=chosen)

    def experiment(
        self, name: str, way: str, devices: Sequence[str], work: Callable[[], Any], **fields: Any
    ) -> dict[str, Any]:
        """Return the run of an experiment: "measured" is what `work` returns. See `trace` for errors."""
        return self._keep(lambda: {"measured": work()}, name, way, devices, **fields)

    def driver_start(
        self, name: str, gpus: Sequence[str], *, alone: bool = False, held: bool = False, **fields: Any
    ) -> dict[str, Any]:
        """Return the run of an experiment with cuInit and the contexts one by one.

        The process sees the GPUs `alone`, or the driver is `held` loaded meanwhile, as persistence mode would.
        """
        environment = {"CUDA_VISIBLE_DEVICES": visible_devices(gpus)} if alone else {}
        named = [f"cuda:{number}" for number in range(len(gpus))] if alone else list(gpus)
        start = functools.partial(self.fresh, "ortmulti.bench.measure.floor", environment, devices=named)
        with (Nvml.open() if held else None) or contextlib.nullcontext():
            return self.experiment(name, "native", gpus, start, **fields)

    def fresh(self, module: str, environment: Mapping[str, str] | None = None, **spec: Any) -> Any:
        """Return the answer of a module's `measure` to a spec, in a fresh process with these variables besides."""
        return fresh_process.run(module, spec, self.timeout, environment)

    def probe(self, name: str, **spec: Any) -> Any:
        """Return the answer of one of `ortmulti.bench.diagnose.probes`, in a fresh process."""
        return self.fresh("ortmulti.bench.diagnose.probes", probe=name, **spec)

    def _keep(
        self, work: Callable[[], dict[str, Any]], experiment: str, way: str, devices: Sequence[str], **fields: Any
    ) -> dict[str, Any]:
        described = {"experiment": experiment, "way": way, "devices": list(devices), "cache": "warm", "settings": {}}
        described |= fields
        cold = ", cold page cache" if described["cache"] == "cold" else ""
        self.say(f"{'' if experiment == 'trace' else f'{experiment}, '}{way} on {describe(devices)}{cold}")
        try:
            run = {**work(), **described}  # as the diagnosis knows it, such as the settings
        except Error as error:  # of the measuring process, or of the page cache
            run = {**described, "error": str(error) or type(error).__name__}
        if experiment != "uncounted":
            run["id"] = f"{experiment}-{len(self.runs) + 1}"
            self.runs.append(run)
        case = way, tuple(devices)
        if "error" not in run:
            self._worked.add(case)
            self._failures = 0
            return run
        try:
            find_devices(self.devices, self.timeout)
        except DeviceError as error:
            raise EndedError(f"a device has vanished: {error}") from error
        self._failures += case in self._worked
        if case in self._worked and self._failures >= 2:
            where = ", ".join(dict.fromkeys(devices))
            raise EndedError(f"{way} on {where} worked before and does not any more: {run['error']}")
        return run


def find_devices(devices: Iterable[str] | None, timeout: float) -> dict[str, Any]:
    """Return what `probes.devices` finds in a fresh process, or raise `DeviceError`; None are all devices."""
    named = None if devices is None else list(devices)
    if named is not None and set(named) == {"cpu"}:
        return {"devices": named, "visible": None, "gpus": []}
    spec = {"probe": "devices", "devices": named}
    try:
        return fresh_process.run("ortmulti.bench.diagnose.probes", spec, min(timeout, _DEVICES_TIMEOUT))
    except fresh_process.MeasurementError as error:
        raise DeviceError(str(error)) from error


def visible_devices(gpus: Iterable[str]) -> str:
    """Return the CUDA_VISIBLE_DEVICES with which a process sees only these GPUs."""
    current = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [] if current is None else [name.strip() for name in current.split(",")]
    indices = [int(gpu.removeprefix("cuda:")) for gpu in gpus]
    return ",".join(names[index] if index < len(names) else str(index) for index in indices)
