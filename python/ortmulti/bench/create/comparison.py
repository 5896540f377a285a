"""Runs a comparison: every measurement in a fresh process, with the requested state of the page cache."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ortmulti.bench.create.measure_strategy import IMPORTS
from ortmulti.bench.create.plan import Case, Plan
from ortmulti.bench.create.summary import rows
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import floor, fresh_process, page_cache, results
from ortmulti.bench.measure.rounds import RoundsInterrupted, failure, measure_rounds
from ortmulti.bench.models import make as make_model
from ortmulti.bench.models import sample_inputs
from ortmulti.errors import Error, NoSuchFile


@dataclass(frozen=True)
class Progress:
    """The progress of a comparison.

    Attributes:
        done: measurements that are done.
        total: all measurements.
        case: the next case; None at the end.
        counted: whether that is one of the measurements. Otherwise it only loads the libraries from the disk and makes
            the model's entry in the cache of optimized models.
    """

    done: int
    total: int
    case: Case | None
    counted: bool = True


# Where ortmulti keeps optimized models.
_CACHE_VARIABLE = "ORTMULTI_CACHE"


@dataclass(frozen=True)
class _Model:
    """A model with its files for the comparison; `cache` is a folder only for its optimized forms."""

    files: tuple[Path, ...]
    feeds: Path
    cache: Path
    facts: Mapping[str, Any]

    def entry_files(self) -> tuple[Path, ...]:
        """Return the files of complete entries; staged entries and locks lie elsewhere in the cache."""
        files = (self.cache / "entries").rglob("*")
        return tuple(sorted(file for file in files if file.is_file() and file.stat().st_size))


def compare(plan: Plan, progress: Callable[[Progress], None] | None = None) -> dict[str, Any]:
    """Measure every case of `plan`.

    A measurement that fails becomes part of the result, and the others go on. Ctrl-C ends the measurements, not the
    call: it returns the results so far.

    Args:
        plan: what to measure.
        progress: called before each measurement and at the end.

    Returns:
        The comparison as a document for JSON, see `ortmulti.bench.measure.results`; "partial" is "interrupted" if it is
        not complete.

    Raises:
        NoSuchFile: a model, or a file that it names, does not exist.
        InvalidProtobuf: a file is not an ONNX model.
    """
    cases = plan.cases()
    partial: str | None = None
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        folder = Path(name)
        models = {model: _prepare(model, folder / str(number)) for number, model in enumerate(plan.models)}
        bench = _Bench(plan, make_model("matmul", folder, megabytes=1) if plan.before == "model" else None)
        for case in _uncounted(plan):
            if progress is not None:
                progress(Progress(0, plan.repeat * len(cases), case, counted=False))
            bench.measure(case, models[case.model], floors="none")  # a failure will show itself again, counted

        def measure(case: Case, number: int) -> dict[str, Any]:
            # The floors come before a case and after it in turns.
            return bench.measure(case, models[case.model], floors="after" if number % 2 else "before")

        try:
            rounds = measure_rounds(
                cases,
                measure,
                plan.repeat,
                order=lambda _, number: plan.round(number),
                progress=None if progress is None else lambda *state: progress(Progress(*state)),
            )
        except RoundsInterrupted as interrupt:
            rounds, partial = interrupt.rounds, "interrupted"
    measurements = [result for results in rounds for result in results.values()]
    return results.document(
        "create",
        settings=_settings(plan),
        models=[dict(models[model].facts) for model in plan.models],
        measurements=measurements,
        rows=[row.as_json() for row in rows(cases, measurements)],
        partial=partial,
    )


def failures(document: Mapping[str, Any]) -> list[str]:
    """Return the errors of a comparison, one text for each measurement that failed."""
    return [
        f"{Path(measurement['model']).stem}, {measurement['strategy']} on {', '.join(measurement['devices'])}: "
        f"{measurement['error']}"
        for measurement in document["measurements"]
        if "error" in measurement
    ]


def _prepare(model: Path, folder: Path) -> _Model:
    if not model.is_file():
        raise NoSuchFile(f"model {model} does not exist")
    external = page_cache.external_files(model)
    folder.mkdir()
    feeds, cache = folder / "feeds.npz", folder / "cache"
    write_arrays(feeds, sample_inputs(model))
    return _Model((model, *external), feeds, cache, results.model_facts(model, external))


def _uncounted(plan: Plan) -> list[Case]:
    """Return the runs before anything counts.

    Each strategy runs once, because the first process of a day reads the libraries from the disk. `shared` runs for
    each model and kind of devices, so that all measured models have their entries.
    """
    smallest = min(plan.device_sets, key=len)
    by_kinds: dict[frozenset[str], tuple[str, ...]] = {}
    for devices in sorted(plan.device_sets, key=len):
        by_kinds.setdefault(frozenset(device.partition(":")[0] for device in devices), devices)
    cases: dict[Case, None] = {}
    for strategy in plan.strategies:
        cases[Case(plan.models[0], smallest, strategy)] = None
        if strategy == "shared" and plan.entry:
            cases.update(
                {Case(model, devices, strategy): None for model in plan.models for devices in by_kinds.values()}
            )
    return list(cases)


_Floors = Literal["before", "after", "none"]


@dataclass(frozen=True)
class _Bench:
    """Measures cases of a plan; `small_model` is for `Plan.before`."""

    plan: Plan
    small_model: Path | None

    def measure(self, case: Case, model: _Model, floors: _Floors) -> dict[str, Any]:
        """Measure a case once, with its floors before or after it."""
        described: dict[str, Any] = {"model": str(case.model), "devices": list(case.devices), "strategy": case.strategy}
        try:
            beside = self._floors(case, model) if floors == "before" else {}
            result = self._creation(case, model, described)
            if floors == "after":
                beside = self._floors(case, model)
            return {**described, **result, **beside}
        except Error as error:  # of the process, or of the page cache
            return {**described, **failure(error)}

    def _creation(self, case: Case, model: _Model, described: Mapping[str, Any]) -> dict[str, Any]:
        if not self.plan.entry:
            shutil.rmtree(model.cache, ignore_errors=True)
        model.cache.mkdir(exist_ok=True)
        entry = model.entry_files()
        files = (*model.files, *entry)
        resident = page_cache.drop(files) if self.plan.cold else page_cache.warm(files)
        spec = {
            **described,
            "settings": asdict(self.plan.settings(case.devices, case.strategy)),
            "feeds": str(model.feeds),
            "before": str(self.small_model or self.plan.before),
        }
        environment = {_CACHE_VARIABLE: str(model.cache)}
        result = fresh_process.run(
            "ortmulti.bench.create.measure_strategy",
            spec,
            self.plan.timeout,
            environment,
            first=IMPORTS.get(case.strategy, ""),
        )
        result = {"resident_share": resident, **result}
        if case.strategy == "shared":
            bytes_now = sum(file.stat().st_size for file in model.entry_files())
            result["entry"] = {"present": bool(entry), "bytes": bytes_now} if bytes_now else None
        return result

    def _floors(self, case: Case, model: _Model) -> dict[str, Any]:
        """Measure the lower bounds of all strategies: the driver's start and, with a cold page cache, reading the
        files.
        """
        floors: dict[str, Any] = {}
        if (devices := floor.cuda_devices(case.devices)) and self.plan.before == "nothing":
            floors |= fresh_process.run("ortmulti.bench.measure.floor", {"devices": devices}, self.plan.timeout)
        if self.plan.cold:
            page_cache.drop(model.files)
            floors["sequential_read"] = page_cache.read_sequentially(model.files)
        return floors


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "repeat": plan.repeat,
        "page_cache": "cold" if plan.cold else "warm",
        "strategies": list(plan.strategies),
        "cores": plan.cores,
        "entry": plan.entry,
        "before": plan.before,
        "intra_op_num_threads": [plan.settings(devices, "").intra_op_num_threads for devices in plan.device_sets],
        "device_sets": [list(devices) for devices in plan.device_sets],
        "provider_options": dict(plan.options.provider),
        "config_entries": dict(plan.options.config_entries),
        "strategy_options": {name: asdict(options) for name, options in plan.strategy_options.items()},
        "timeout": plan.timeout,
    }
