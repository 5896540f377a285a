"""Runs the comparison with PyTorch, each setting in fresh processes, and shows it as tables."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.pytorch.plan import Setting, TorchPlan
from ortmulti.bench.measure import fresh_process, results
from ortmulti.bench.measure.rounds import Interval, ratios, round_numbers, spread
from ortmulti.bench.models import make as make_model
from ortmulti.bench.reports.tables import Cell, Column, Report, Sheet, label
from ortmulti.errors import LibraryError

_MEASURE = "benchmarks.pytorch.measure_setting"
_CACHE_VARIABLE = "ORTMULTI_CACHE"

# Compilers' errors can be as long as their input.
_MOST_TEXT = 500


def require_torch() -> None:
    """Raises LibraryError where PyTorch is not installed, without importing it."""
    if find_spec("torch") is None:
        raise LibraryError("the comparison with PyTorch needs PyTorch, which is not installed: pip install torch")


def bench(plan: TorchPlan, folder: Path, progress: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
    """Compares at every setting of `plan`.

    What fails becomes part of the result, and the others go on.

    Args:
        plan: what to compare.
        folder: for the models, which are made there unless it has them.
        progress: called with the settings done, their number, and the one that comes next.

    Returns:
        A result of kind "torch", see `ortmulti.bench.measure.results`; after Ctrl-C with what was measured by then, and
        "partial" is "interrupted".

    Raises:
        LibraryError: PyTorch or the onnx package is not installed.
    """
    require_torch()
    models = {precision: make_model("resnet50", folder, precision=precision) for precision in _files(plan)}
    measurements: list[dict[str, Any]] = []
    settings = plan.settings()
    partial: str | None = None
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        environment = {_CACHE_VARIABLE: str(Path(name) / "cache")}
        for number in round_numbers(len(settings), plan.budget, estimate="longest"):
            setting = settings[number]
            if progress is not None:
                progress(number, len(settings), setting.name)
            spec = {
                "setting": asdict(setting),
                "model": str(models["fp16" if setting.precision == "fp16" else "fp32"]),
                "fp32_model": str(models["fp32"]),
                "device": plan.device,
                "compile_modes": list(plan.compile_modes),
                "rounds": plan.rounds,
                "block_seconds": plan.block_seconds,
            }
            try:
                measurements.append(_measure(setting, spec, plan.timeout, environment))
            except KeyboardInterrupt:
                if not measurements:
                    raise
                partial = "interrupted"
                break
    if progress is not None:
        progress(len(settings), len(settings), "")
    return results.document(
        "torch",
        settings=plan.as_json(),
        models=[
            {"name": path.stem, "path": str(path), "bytes": path.stat().st_size, "external_bytes": 0}
            for path in models.values()
        ],
        left_out=[setting.name for setting in settings[len(measurements) :]],
        measurements=measurements,
        rows=[_row(measurement) for measurement in measurements],
        partial=partial,
    )


def failures(document: Mapping[str, Any]) -> list[str]:
    """What went wrong: settings that failed or had no time, sides without a way that works, and wrong outputs.

    One way of several that does not work, such as a compiler's, is not among them.
    """
    why = document.get("partial") or "the budget has no time for it"
    found = [f"{name}: left out: {why}" for name in document["left_out"]]
    for measurement, row in zip(document["measurements"], document["rows"], strict=True):
        found += [f"{row['setting']}: {error}" for error in measurement["errors"]]
        for side in ("ortmulti", "pytorch"):
            if row[side] is None and not measurement["errors"]:
                errors = [way["error"] for way in measurement["ways"] if way["side"] == side and "error" in way]
                found.append(f"{row['setting']}: {side} did not run: {'; '.join(errors)}")
        found += [
            f"{row['setting']}: the output of {way['side']}, {way['name']} differs by {way['difference']:.3g}"
            for way in measurement["ways"]
            if way.get("equal") is False
        ]
    return found


def _files(plan: TorchPlan) -> list[str]:
    return ["fp32", *(["fp16"] if "fp16" in plan.precisions else [])]


def _measure(setting: Setting, spec: dict[str, Any], timeout: float, environment: Mapping[str, str]) -> dict[str, Any]:
    measured: dict[str, Any] = {**asdict(setting), "setting": setting.name, "torch": None, "ways": [], "errors": []}
    for benchmark in (True, False):
        try:
            result = fresh_process.run(_MEASURE, {**spec, "benchmark": benchmark}, timeout, environment)
        except fresh_process.MeasurementError as error:
            measured["errors"].append(" ".join(str(error).split())[:_MOST_TEXT])
            continue
        measured["torch"] = result["torch"]
        measured["ways"] += result["ways"]
    return measured


def _row(measurement: Mapping[str, Any]) -> dict[str, Any]:
    """A setting's best ways, and their ratio.

    Returns:
        "setting", "precision", "batch", "place"; "ortmulti" and "pytorch": None, or the way with the smallest median:
        "name" and "seconds" (`spread`); "ratio" (`Interval`): the former's seconds over the latter's in the same round.
    """
    good = [way for way in measurement["ways"] if way.get("seconds")]
    best = {side: _best([way for way in good if way["side"] == side]) for side in ("ortmulti", "pytorch")}
    row: dict[str, Any] = {key: measurement[key] for key in ("setting", "precision", "batch", "place")}
    for side, way in best.items():
        row[side] = None if way is None else {"name": way["name"], "seconds": spread(way["seconds"])}
    ours, theirs = best["ortmulti"], best["pytorch"]
    row["ratio"] = None
    if ours is not None and theirs is not None:
        rounds = [dict(zip(best, both, strict=True)) for both in zip(ours["seconds"], theirs["seconds"], strict=True)]
        row["ratio"] = Interval.json(ratios(rounds, "ortmulti", "pytorch", float))
    return row


def _best(ways: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return min(ways, key=lambda way: statistics.median(way["seconds"]), default=None)


Json = Mapping[str, Any]

_NOTES = (
    "Medians of the rounds, below them ranges, of the ratio the confidence interval (95% from six rounds on). A run is "
    "waited for before the next one begins. host: new NumPy arrays in and out, PyTorch through pinned buffers that are "
    "kept; device: both lie there. Ratio: the fastest of ortmulti's ways over PyTorch's fastest, below 1 ortmulti is "
    "faster."
)


def _fastest(side: str) -> Callable[[Json], Any]:
    return lambda row: row[side] and row[side]["seconds"]


def _seconds(way: Json) -> Any:
    return ("-", "failed") if "error" in way else spread(way["seconds"])


def _difference(way: Json) -> Cell:
    return ("-", "") if "error" in way else (f"{way['difference']:.1e}", "" if way["equal"] else "TOO LARGE")


def _sheets(document: Json) -> Iterator[Sheet]:
    """Yield the fastest of both sides at each setting, and every way's time."""
    yield Sheet(
        "the fastest ways",
        [
            label("setting"),
            label("ortmulti's fastest", lambda row: row["ortmulti"] and row["ortmulti"]["name"]),
            label("PyTorch's fastest", lambda row: row["pytorch"] and row["pytorch"]["name"]),
        ],
        [
            Column("ortmulti", "ortmulti, ms", show=_fastest("ortmulti"), scale=1e-3),
            Column("pytorch", "PyTorch, ms", show=_fastest("pytorch"), scale=1e-3),
            Column("ratio", "ratio"),
        ],
        document["rows"],
    )
    yield Sheet(
        "every way",
        [label("setting"), label("side"), Column("name", "way")],
        [
            Column("seconds", "a run, ms", show=_seconds, scale=1e-3),
            Column("difference", "difference", show=_difference),
        ],
        [{"setting": one["setting"], **way} for one in document["measurements"] for way in one["ways"]],
    )


REPORT = Report(
    lambda document: f"ResNet-50 on {document['settings']['device']}", _sheets, lambda _document, _details: _NOTES
)
