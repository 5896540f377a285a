"""Runs the change that a finding proposes: before and after in turns, each in fresh processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ortmulti.bench.diagnose.bench import Bench
from ortmulti.bench.diagnose.findings import LEAST_SECONDS, Finding, conclude_again, nothing
from ortmulti.bench.diagnose.measured import creation_of, start_of_workers
from ortmulti.bench.measure.rounds import Interval, alternating, of_case, ratios, round_numbers
from ortmulti.errors import Error

# Six pairs are the fewest whose interval has a confidence of 0.95.
_PAIRS = 6
_LEAST_PAIRS = 3
_QUICK_PAIRS = 2
_CANDIDATES = 3


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
        for number in round_numbers(most, bench.left(), least=_LEAST_PAIRS, estimate="none"):
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
    seconds = float(run["wall"]) if until == "answered" else creation_of(run)
    if until == "created by workers":
        seconds -= start_of_workers(run)
    return max(seconds, LEAST_SECONDS / 1e3)


@contextlib.contextmanager
def _model(bench: Bench, kind: str | None) -> Iterator[Path]:
    """Make the model of a recipe, "optimized" or a copy "in memory", and remove it at the end; None: the usual one.

    Raises:
        Error, OSError: it cannot be made here.
    """
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
