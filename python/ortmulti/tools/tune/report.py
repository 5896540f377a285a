"""A tuning's result as a document."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti.tools.measure import results
from ortmulti.tools.measure.rounds import Interval
from ortmulti.tools.tune.bench import Bench
from ortmulti.tools.tune.outputs import TF32_TOLERANCE, TOLERANCES
from ortmulti.tools.tune.search import Outcome
from ortmulti.tools.tune.space import DEFAULTS, Choice, Space

UNITS = {"latency": "s", "throughput": "s per answer", "creation": "s", "memory": "bytes"}
"""Of costs, by objective."""


def document(
    bench: Bench,
    space: Space,
    outcome: Outcome,
    advised: Mapping[Choice, Interval],
    seconds: float,
    budget: float | None,
    exhaustive: bool,
) -> dict[str, Any]:
    """Everything that was measured: a result of kind "tune", see `ortmulti.tools.measure.results`.

    Ratios are costs over the defaults', or what is named: below 1 is better. "gain" is the inverse.
    """
    job, best = bench.job, outcome.best
    return results.document(
        "tune",
        settings={
            "objective": job.objective,
            "through": job.through,
            "devices": list(job.devices),
            "clients": job.clients,
            "block_seconds": job.block_seconds,
            "budget": budget,
            "exhaustive": exhaustive,
            "tolerance": _tolerance(job.tolerance, job.on_gpu),
            "candidates": {one.name: [dict(choice.items) for choice in one.choices] for one in space.settings},
        },
        models=[{"name": Path(job.model).stem, "path": job.model, "bytes": Path(job.model).stat().st_size}],
        partial=outcome.partial,
        seconds=seconds,
        unit=UNITS[job.objective],
        defaults=_median(bench.costs.get(DEFAULTS, [])),
        best=None
        if best is None
        else {
            "settings": best.configuration.options,
            "cost": _median(bench.costs.get(best.configuration, [])),
            "gain": _gain(best.ratio),
            "outputs": _outputs(bench, best.configuration),
            "parts": [{"settings": dict(choice.items), "gain": _ratio(part)} for choice, part in outcome.parts.items()],
        },
        advice=[
            {"settings": dict(choice.items), "gain": _gain(interval), "better": interval.high < 1}
            for choice, interval in advised.items()
        ],
        trials=[
            {
                "settings": trial.configuration.options,
                "ratio": _ratio(trial.interval),
                "samples": len(trial.ratios),
                "outputs": _outputs(bench, trial.configuration),
            }
            for trial in outcome.trials
        ],
        rejected=[
            {"settings": configuration.options, "why": error.why, "text": str(error)}
            for configuration, error in outcome.rejected.items()
        ],
        outputs_repeat={"compared": bench.repeats.allowed, "text": bench.repeats.text},
    )


def _tolerance(given: float | None, on_gpu: bool) -> dict[str, float]:
    if given is not None:
        return {"floats": given}
    return {**TOLERANCES, **({"float32": TF32_TOLERANCE} if on_gpu else {})}


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _ratio(interval: Interval) -> dict[str, float]:
    return {
        "median": interval.median,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
    }


def _gain(interval: Interval) -> dict[str, float]:
    """How many times as good: the inverse of a ratio of costs."""
    return {
        "median": 1 / interval.median,
        "low": 1 / interval.high,
        "high": 1 / interval.low,
        "confidence": interval.confidence,
    }


def _outputs(bench: Bench, configuration: Any) -> float | None:
    """By how much its outputs differ from the defaults', as a part of the largest; None: that is not known."""
    difference = bench.differences.get(configuration)
    return None if difference is None else difference.error
