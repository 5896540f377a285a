"""Runs a comparison of pools: every measurement in a fresh process, round after round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import fresh_process, page_cache, results
from ortmulti.bench.measure.rounds import RoundsInterrupted, failure, measure_rounds
from ortmulti.bench.models import make as make_model
from ortmulti.bench.models import sample_inputs
from ortmulti.bench.serve.cases import Load, closed
from ortmulti.errors import NoSuchFile

from .plan import RunCase, RunPlan, RunProgress
from .summary import rows

_MEASURE = "ortmulti.bench.serve.measure_pool"
_CACHE_VARIABLE = "ORTMULTI_CACHE"

_CEILING_SECONDS = 1.0
_CEILING_WARM_SECONDS = 0.2


def bench(plan: RunPlan, progress: Callable[[RunProgress], None] | None = None) -> dict[str, Any]:
    """Measure every case of `plan`.

    A measurement that fails becomes part of the result, and the others go on. Ctrl-C ends the measurements, not the
    call: it returns the results so far.

    Args:
        plan: what to measure.
        progress: called before each measurement and at the end.

    Returns:
        A result of kind "run", see `ortmulti.bench.measure.results`; "partial" is "interrupted" if it is not complete.

    Raises:
        NoSuchFile: a model, or a file that it names, does not exist.
        InvalidProtobuf: a file is not an ONNX model.
    """
    tell = progress or (lambda _: None)
    total = plan.repeat * len(plan.cases())
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        folder = Path(name)
        environment = {_CACHE_VARIABLE: str(folder / "cache")}
        facts = [_facts(model) for model in plan.models]
        feeds = {
            (model, batch): _save_feeds(model, batch, plan.sequence, folder / f"feeds-{number}-{batch}.npz")
            for number, model in enumerate(plan.models)
            for batch in plan.batches
        }
        ceilings = _ceilings(plan, folder, environment, lambda case: tell(RunProgress(0, total, case, counted=False)))
        capacities: dict[tuple[RunCase, int], float] = {}

        def measure(case: RunCase, number: int) -> dict[str, Any]:
            capacity = capacities.get((_closed_of(case, plan), number))
            spec = _spec(plan, case, feeds[case.model, case.batch], number)
            result = _measure(spec, case.load, capacity, plan.timeout, environment)
            if case.load == plan.closed and "throughput" in result:
                capacities[case, number] = result["throughput"]
            return result

        partial: str | None = None
        try:
            measured = measure_rounds(
                plan.cases(),
                measure,
                plan.repeat,
                order=lambda _, number: plan.round(number),
                budget=plan.budget,
                progress=lambda *state: tell(RunProgress(*state)),
            )
        except RoundsInterrupted as interrupt:
            measured, partial = interrupt.rounds, "interrupted"
    return results.document(
        "run",
        settings={**_settings(plan), "rounds": len(measured)},
        models=facts,
        ceilings=ceilings,
        measurements=[
            {**_described(case), "round": number, **result}
            for number, this_round in enumerate(measured)
            for case, result in this_round.items()
        ],
        rows=[row.as_json() for row in rows(plan, measured, _by_kind(ceilings))],
        partial=partial,
    )


def failures(document: Mapping[str, Any]) -> list[str]:
    """Return the errors, one text for each measurement that failed."""
    return [
        f"{Path(measurement['model']).stem}, batch {measurement['batch']}, {measurement['variant']} on "
        f"{', '.join(measurement['devices'])}, {measurement['load']}: {measurement['error']}"
        for measurement in document["measurements"]
        if "error" in measurement
    ]


def _facts(model: Path) -> dict[str, Any]:
    if not model.is_file():
        raise NoSuchFile(f"model {model} does not exist")
    return results.model_facts(model, page_cache.external_files(model))


def _save_feeds(model: Path, batch: int, sequence: int, path: Path) -> Path:
    write_arrays(path, sample_inputs(model, batch, sequence))
    return path


def _closed_of(case: RunCase, plan: RunPlan) -> RunCase:
    return RunCase(case.model, case.batch, case.devices, case.variant, plan.closed)


def _measure(
    spec: dict[str, Any], load: Load, capacity: float | None, timeout: float, environment: Mapping[str, str]
) -> dict[str, Any]:
    if load.relative:
        if capacity is None:
            return {"error": f"{load.name} of a closed loop that was not measured", "stderr": ""}
        load = load.at(capacity)
    try:
        return fresh_process.run(_MEASURE, {**spec, "load": load.as_json()}, timeout, environment)
    except fresh_process.MeasurementError as error:
        return failure(error)


def _spec(plan: RunPlan, case: RunCase, feeds: Path, seed: int) -> dict[str, Any]:
    return {
        "model": str(case.model),
        "devices": list(case.devices),
        "variant": asdict(case.variant),
        "feeds": str(feeds),
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        "seconds": plan.seconds,
        "warm_seconds": plan.warm_seconds,
        "seed": seed,
        "intra_op_num_threads": plan.intra_op_num_threads,
        "provider_options": dict(plan.provider_options),
        "config_entries": dict(plan.config_entries),
    }


def _ceilings(
    plan: RunPlan, folder: Path, environment: Mapping[str, str], tell: Callable[[RunCase], None]
) -> list[dict[str, Any]]:
    """Measure the requests per second of the clients and each kind of pool with a model that does nothing."""
    if not plan.ceiling:
        return []
    model = make_model("identity", folder)
    feeds = _save_feeds(model, 1, plan.sequence, folder / "feeds-identity.npz")
    found = []
    for devices in plan.device_sets:
        for variant in plan.variants:
            tell(RunCase(model, 1, devices, variant, plan.closed))
            on_cpu = {**asdict(variant), "cuda_graph": False}
            spec = {
                **_spec(plan, RunCase(model, 1, ("cpu",) * len(devices), variant, plan.closed), feeds, 0),
                "variant": on_cpu,
                "inputs": "host",
                "outputs": "host",
                "seconds": min(plan.seconds, _CEILING_SECONDS),
                "warm_seconds": _CEILING_WARM_SECONDS,
                "intra_op_num_threads": 1,
                "provider_options": {},
                "config_entries": {},
            }
            result = _measure(spec, closed(plan.closed.in_flight), None, plan.timeout, environment)
            found.append({"sessions": len(devices), "variant": variant.name, **result})
    return found


def _by_kind(ceilings: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], float]:
    return {(one["sessions"], one["variant"]): one["throughput"] for one in ceilings if "error" not in one}


def _described(case: RunCase) -> dict[str, Any]:
    return {
        "model": str(case.model),
        "batch": case.batch,
        "devices": list(case.devices),
        "variant": case.variant.name,
        "load": case.load.name,
    }


def _settings(plan: RunPlan) -> dict[str, Any]:
    return {
        "repeat": plan.repeat,
        "seconds": plan.seconds,
        "warm_seconds": plan.warm_seconds,
        "batches": list(plan.batches),
        "sequence": plan.sequence,
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        "device_sets": [list(devices) for devices in plan.device_sets],
        "variants": [asdict(variant) for variant in plan.variants],
        "loads": [load.as_json() for load in (plan.closed, *plan.loads)],
        "intra_op_num_threads": plan.intra_op_num_threads,
        "provider_options": dict(plan.provider_options),
        "config_entries": dict(plan.config_entries),
        "timeout": plan.timeout,
        "budget": plan.budget,
    }
