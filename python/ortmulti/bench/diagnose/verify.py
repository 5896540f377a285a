"""Runs the change that a finding proposes: before and after in turns, each in fresh processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ortmulti.bench.diagnose.experiments import floor
from ortmulti.bench.diagnose.findings import conclude_again
from ortmulti.bench.measure.rounds import Interval, alternating, of_case, ratios, round_numbers
from ortmulti.errors import Error

from .findings import LEAST_SECONDS, DriverStart, Finding, Recipe, Start, nothing
from .measured import Measured, creation_of, start_of_workers
from .runs import Bench

# Six pairs are the fewest whose interval has a confidence of 0.95.
_PAIRS = 6
_LEAST_PAIRS = 3
_QUICK_PAIRS = 2
_CANDIDATES = 3
_MEMORY = Path("/dev/shm")


class _NotPossibleError(Exception):
    """The change cannot be run here; the text says why."""


def verify(document: dict[str, Any], found: list[Finding], bench: Bench) -> None:
    """Verify the findings in order until one is confirmed; it becomes the first. Verify the others while the budget
    lasts.

    A finding whose change gains nothing for certain goes behind those that were not tried.

    Args:
        document: its "findings", "runs" and "prediction" are updated.
        found: what `conclude` returned.
        bench: runs the changes.

    Raises:
        EndedError, KeyboardInterrupt: the document has the results so far.
    """
    known = len(bench.runs)
    try:
        confirmed, left, tried = _verify(document, found, bench)
    finally:
        document["runs"] += bench.runs[known:]
    if confirmed or not tried:
        return  # the other conclusions are of the runs of which the findings speak
    conclude_again(document)
    if not any(finding.seconds for finding in left):
        nothing_else = nothing(Measured(document), document["prediction"]["best"])
        left = [nothing_else, *(finding for finding in left if finding.id != "nothing")]
        document["findings"] = [finding.as_json() for finding in (*left, *tried)]


def _verify(
    document: dict[str, Any], found: list[Finding], bench: Bench
) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Return the confirmed findings, those in their place behind them, and those whose change gains nothing."""
    left, tried = list(found), list[Finding]()
    confirmed: list[Finding] = []

    for finding in [one for one in found if one.recipe is not None]:
        spent = bench.elapsed() > bench.plan.budget
        if confirmed:
            if bench.plan.quick or spent:
                break
        # A finding that cannot be run keeps its place, if it would save the most.
        elif (left[0] is not finding and left[0].seconds > 0) or len(tried) == _CANDIDATES or (tried and spent):
            break
        verified = _run(bench, finding)
        after = dataclasses.replace(finding, verified=verified)
        place = left.index(finding)
        left.pop(place)
        if verified is not None and verified["interval"][0] <= 1:
            tried.append(after)
        elif confirmed:
            left.insert(place, after)
        else:
            confirmed.append(after)
        # A change that is known to save nothing is not among the first findings.
        document["findings"] = [finding.as_json() for finding in (*confirmed, *left, *tried)]
    return confirmed, left, tried


def _run(bench: Bench, finding: Finding) -> dict[str, Any] | None:
    """Return the verification of a finding; None if it could not be run."""
    recipe = finding.recipe
    assert recipe is not None
    pairs: list[dict[str, float]] = []
    try:
        with _models(bench, recipe) as models:
            most = _QUICK_PAIRS if bench.plan.quick else _PAIRS
            left = bench.plan.budget - bench.elapsed()
            for number in round_numbers(most, left, least=_LEAST_PAIRS, estimate="none"):
                pair = {
                    name: _seconds(bench, finding, recipe, getattr(recipe, name), models)
                    for name in alternating(("before", "after"), number)
                }
                pairs.append(pair)
    except _NotPossibleError:
        if not pairs:
            return None
    interval = Interval.of(ratios(pairs, "before", "after", float))
    assert interval is not None
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


def _seconds(
    bench: Bench, finding: Finding, recipe: Recipe, start: Start | DriverStart, models: Mapping[str, Path | None]
) -> float:
    if isinstance(start, DriverStart):
        run = floor(bench, "verify", list(start.gpus), only_these=start.only_these, held=start.held)
        if "error" in run:
            raise _NotPossibleError(run["error"])
        return max(float(run["measured"]["driver_floor"]), 1e-9)
    run = bench.trace(
        start.way,
        start.devices,
        cache=start.cache,
        experiment="verify",
        model=models[start.model],
        settings=start.settings,
        environment=start.environment,
        instrumented=False,
    )
    if "error" in run:
        raise _NotPossibleError(run["error"])
    run["finding"] = finding.id
    run["changed"] = start != Start(start.way, start.devices)
    seconds = float(run["wall"]) if recipe.until == "answered" else creation_of(run)
    if recipe.until == "created by workers":
        seconds -= start_of_workers(run)
    return max(seconds, LEAST_SECONDS / 1e3)


@contextlib.contextmanager
def _models(bench: Bench, recipe: Recipe) -> Iterator[dict[str, Path | None]]:
    """Make the models for a recipe, and remove them at the end.

    Raises:
        _NotPossibleError: one cannot be made here.
    """
    starts = [start for start in (recipe.before, recipe.after) if isinstance(start, Start)]
    models: dict[str, Path | None] = {"as it is": None}
    with contextlib.ExitStack() as stack:
        for start in starts:
            if start.model == "in memory":
                models[start.model] = stack.enter_context(_copy_in_memory(bench))
            elif start.model == "optimized":
                models[start.model] = stack.enter_context(_optimized(bench, start))
        yield models


@contextlib.contextmanager
def _copy_in_memory(bench: Bench) -> Iterator[Path]:
    size = sum(file.stat().st_size for file in bench.files)
    try:
        available = shutil.disk_usage(_MEMORY).free
    except OSError as error:
        raise _NotPossibleError(f"{_MEMORY} cannot be used: {error}") from error
    if size > available // 2:
        raise _NotPossibleError(f"{_MEMORY} has {available} bytes and the model {size}")
    bench.say("copying the model into memory")
    with tempfile.TemporaryDirectory(prefix="ortmulti-", dir=_MEMORY) as name:
        top = bench.plan.model.parent
        for file in bench.files:
            target = Path(name, os.path.relpath(file, top))
            if not target.resolve().is_relative_to(Path(name).resolve()):
                raise _NotPossibleError(f"{file} lies outside of the model's folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        yield Path(name, bench.plan.model.name)


@contextlib.contextmanager
def _optimized(bench: Bench, start: Start) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        target = Path(name) / bench.plan.model.name
        bench.say("saving the optimized model")
        settings = bench.plan.settings_for(start.devices, bench.cores)
        model = str(bench.plan.model)
        try:
            bench.probe("optimized", model=model, target=str(target), device=start.devices[0], settings=settings)
        except Error as error:
            raise _NotPossibleError(str(error)) from error
        yield target
