"""The bench of a diagnosis: one measurement after the other, each in a fresh process; and runs of findings' changes."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti.bench.diagnose.findings import LEAST_SECONDS, Finding, conclude_again, nothing
from ortmulti.bench.diagnose.measured import creation_of, visible_devices
from ortmulti.bench.diagnose.trace import trace
from ortmulti.bench.measure import fresh_process
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval, alternating, of_case, ratios, round_numbers
from ortmulti.bench.strategies import SessionSettings
from ortmulti.devices.nvml import Nvml
from ortmulti.errors import DeviceError, Error

_DEVICES_TIMEOUT = 120.0


class EndedError(Exception):
    """The diagnosis cannot go on; the text says why, for its reader."""


@dataclass(kw_only=True)
class Bench:
    """What one diagnosis measures, as `diagnose` was asked for it, and its runs so far."""

    devices: tuple[str, ...]  # one for each session
    ways: Sequence[str]
    repeat: int
    budget: float
    quick: bool
    settings: Mapping[str, Any]
    timeout: float
    files: tuple[Path, ...]  # the model's, its own first
    folder: Path  # has the inputs, feeds.npz, and gets the model's optimized forms
    # Called before each measurement with the number of finished ones, an estimate of all, and a text.
    progress: Callable[[int, int, str], None]
    held_open_helps: bool = False  # no persistence mode: the driver of some GPU is unloaded between processes
    begin: float = field(default_factory=time.monotonic)
    runs: list[dict[str, Any]] = field(default_factory=list)  # of the document
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


def find_devices(named: Sequence[str] | None, timeout: float) -> dict[str, Any]:
    """Return what `probes.devices` finds in a fresh process, or raise `DeviceError`; None are all devices."""
    if named is not None and set(named) == {"cpu"}:
        return {"devices": named, "visible": None, "gpus": []}
    spec = {"probe": "devices", "devices": named}
    try:
        return fresh_process.run("ortmulti.bench.diagnose.probes", spec, min(timeout, _DEVICES_TIMEOUT))
    except fresh_process.MeasurementError as error:
        raise DeviceError(str(error)) from error


# --- Verification -----------------------------------------------------------------------------------------------------

# Six pairs are the fewest whose interval has a confidence of 0.95.
_PAIRS = 6
_LEAST_PAIRS = 3
_QUICK_PAIRS = 2
_CANDIDATES = 3


def verify(document: dict[str, Any], found: list[Finding], bench: Bench) -> None:
    """Verify the findings of `conclude` in order until one is confirmed; it becomes the first. Verify the others while
    the budget lasts.

    A finding whose change gains nothing for certain goes behind those that were not tried. The document's "findings",
    "runs" and "prediction" are updated, also if EndedError or KeyboardInterrupt is raised.
    """
    known = len(bench.runs)
    left, tried = list(found), list[Finding]()
    confirmed = False
    try:
        for finding in [one for one in found if one.recipe is not None]:
            spent = bench.left() < 0
            if confirmed:
                if bench.quick or spent:
                    break
            # A finding that cannot be run keeps its place, if it would save the most.
            elif (left[0] is not finding and left[0].seconds > 0) or len(tried) == _CANDIDATES or (tried and spent):
                break
            finding.verified = _run(bench, finding)
            if finding.verified is not None and finding.verified["interval"][0] <= 1:
                # A change that is known to save nothing is not among the first findings.
                left.remove(finding)
                tried.append(finding)
            elif not confirmed:
                confirmed = True
                left.remove(finding)
                left.insert(0, finding)
            document["findings"] = [finding.as_json() for finding in (*left, *tried)]
    finally:
        document["runs"] += bench.runs[known:]
    if confirmed or not tried:
        return  # the other conclusions are of the runs of which the findings speak
    measured = conclude_again(document)
    if not any(finding.seconds for finding in left):
        left = [nothing(measured), *(finding for finding in left if finding.id != "nothing")]
        document["findings"] = [finding.as_json() for finding in (*left, *tried)]


def _run(bench: Bench, finding: Finding) -> dict[str, Any] | None:
    """Return the verification of a finding; None if it could not be run."""
    recipe = finding.recipe
    assert recipe is not None
    pairs: list[dict[str, float]] = []
    with contextlib.suppress(Error, OSError), _model(bench, recipe.after.get("model")) as model:
        most = _QUICK_PAIRS if bench.quick else _PAIRS
        for number in round_numbers(most, bench.left(), _LEAST_PAIRS):
            pair = {}
            for name in alternating(("before", "after"), number):
                start = dict(getattr(recipe, name))
                if "model" in start:
                    start["model"] = model
                pair[name] = _seconds(bench, finding, start, recipe.until)
            pairs.append(pair)
    interval = Interval.of(ratios(pairs, "before", "after", float))
    if interval is None:
        return None
    return {
        "before": statistics.median(of_case(pairs, "before")),
        "after": statistics.median(of_case(pairs, "after")),
        "speedup": interval.median,
        "interval": [interval.low, interval.high],
        "confidence": interval.confidence,
        "pairs": len(pairs),
        "what": f"{recipe.what}; {len(pairs)} pairs in turns, "
        f"{'until the first answers' if recipe.until == 'answered' else 'creation'}",
    }


def _seconds(bench: Bench, finding: Finding, start: Mapping[str, Any], until: str) -> float:
    """Run a start of a recipe, and return its seconds."""
    on_driver = until == "driver"
    run = bench.driver_start("verify", **start) if on_driver else bench.trace(experiment="verify", **start)
    if "error" in run:
        raise Error(run["error"])
    if on_driver:
        return max(float(run["measured"]["driver_floor"]), 1e-9)
    run |= {"finding": finding.id, "changed": start.keys() > {"way", "devices"}}
    return max(float(run["wall"]) if until == "answered" else creation_of(run), LEAST_SECONDS / 1e3)


@contextlib.contextmanager
def _model(bench: Bench, kind: str | None) -> Iterator[Path]:
    """Make the model of a recipe, "optimized" or a copy "in memory", and remove it at the end; None: the usual one."""
    if kind is None:
        yield bench.model
        return
    in_memory = kind == "in memory"
    with tempfile.TemporaryDirectory(prefix="ortmulti-", dir="/dev/shm" if in_memory else None) as folder:
        target = Path(folder, bench.model.name)
        bench.say("copying the model into memory" if in_memory else "saving the optimized model")
        if not in_memory:
            spec = {"device": bench.devices[0], "settings": bench.settings_for(bench.devices)}
            bench.probe("optimized", model=str(bench.model), target=str(target), **spec)
        elif 2 * sum(file.stat().st_size for file in bench.files) > shutil.disk_usage(folder).free:
            raise Error("the model would take more than half of the free memory")
        for file in bench.files if in_memory else ():
            copy = Path(folder, os.path.relpath(file, bench.model.parent))
            if not copy.resolve().is_relative_to(Path(folder).resolve()):
                raise Error(f"{file} lies outside of the model's folder")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        yield target
