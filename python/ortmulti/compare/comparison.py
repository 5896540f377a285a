"""Runs a comparison: every measurement in a fresh process, under the page cache that was asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortmulti.errors import Error, NoSuchFile
from ortmulti.models import sample_inputs

from . import fresh_process, page_cache, results
from .plan import Case, Plan
from .summary import rows


@dataclass(frozen=True)
class Progress:
    """How far a comparison is.

    Attributes:
        done: measurements that are done.
        total: all measurements.
        case: what is measured next; None at the end.
        counted: whether that is one of the measurements, or only to load the libraries from the disk.
    """

    done: int
    total: int
    case: Case | None
    counted: bool = True


@dataclass(frozen=True)
class _Model:
    files: tuple[Path, ...]
    feeds: Path
    facts: Mapping[str, Any]


def compare(plan: Plan, progress: Callable[[Progress], None] | None = None) -> dict[str, Any]:
    """Measures every case of `plan`.

    A measurement that fails becomes part of the result, and the others go on.

    Args:
        plan: what to measure.
        progress: called before each measurement and at the end.

    Returns:
        The comparison as JSON can carry it, see `ortmulti.compare.results`.

    Raises:
        NoSuchFile: a model, or a file that it names, does not exist.
        InvalidProtobuf: a model is none.
    """
    measurements: list[dict[str, Any]] = []
    order = plan.order()
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        models = {model: _prepare(model, Path(folder) / f"{number}.npz") for number, model in enumerate(plan.models)}
        _load_libraries(plan, models, progress, len(order))
        for number, case in enumerate(order):
            if progress is not None:
                progress(Progress(number, len(order), case))
            measurements.append(_measure(plan, case, models[case.model]))
    if progress is not None:
        progress(Progress(len(order), len(order), None))
    return results.document(
        "create",
        settings=_settings(plan),
        models=[dict(models[model].facts) for model in plan.models],
        measurements=measurements,
        rows=[row.as_json() for row in rows(plan.cases(), measurements)],
    )


def failures(document: Mapping[str, Any]) -> list[str]:
    """What went wrong in a comparison, one text for each measurement that failed."""
    return [
        f"{Path(measurement['model']).stem}, {measurement['strategy']} on {', '.join(measurement['devices'])}: "
        f"{measurement['error']}"
        for measurement in document["measurements"]
        if "error" in measurement
    ]


def _prepare(model: Path, feeds: Path) -> _Model:
    if not model.is_file():
        raise NoSuchFile(f"model {model} does not exist")
    external = page_cache.external_files(model)
    np.savez(feeds, **sample_inputs(model))  # type: ignore[arg-type]  # mypy sees savez's other parameter
    facts = {
        "name": model.stem,
        "path": str(model),
        "bytes": model.stat().st_size,
        "external_bytes": sum(file.stat().st_size for file in external),
    }
    return _Model((model, *external), feeds, facts)


def _load_libraries(
    plan: Plan, models: Mapping[Path, _Model], progress: Callable[[Progress], None] | None, total: int
) -> None:
    """Runs each strategy once, uncounted: the first process of a day reads the libraries themselves from the disk."""
    for strategy in plan.strategies:
        case = Case(plan.models[0], min(plan.device_sets, key=len), strategy)
        if progress is not None:
            progress(Progress(0, total, case, counted=False))
        _measure(plan, case, models[case.model])  # a failure will show itself again, counted


def _measure(plan: Plan, case: Case, model: _Model) -> dict[str, Any]:
    described: dict[str, Any] = {"model": str(case.model), "devices": list(case.devices), "strategy": case.strategy}
    try:
        described["resident_share"] = page_cache.drop(model.files) if plan.cold else page_cache.warm(model.files)
        settings = asdict(plan.settings(case.devices))
        spec = {**described, "settings": settings, "feeds": str(model.feeds)}
        return {**described, **fresh_process.run("ortmulti.compare.worker", spec, plan.timeout)}
    except fresh_process.MeasurementError as error:
        return {**described, "error": str(error), "stderr": error.stderr}
    except Error as error:  # the page cache
        return {**described, "error": str(error), "stderr": ""}


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        "repeat": plan.repeat,
        "page_cache": "cold" if plan.cold else "warm",
        "strategies": list(plan.strategies),
        "cores": plan.cores,
        "intra_op_num_threads": [plan.settings(devices).intra_op_num_threads for devices in plan.device_sets],
        "device_sets": [list(devices) for devices in plan.device_sets],
        "provider_options": dict(plan.provider_options),
        "timeout": plan.timeout,
    }
