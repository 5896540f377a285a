"""Published tables beside results of `ortmulti bench run` and `bench run --torch`, and what follows for the claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import claims, reports
from ortmulti.bench.measure import results
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval

from .verdicts import Measured, Outcome, Verdict, judge, lines_of, side_by_side

Document = Mapping[str, Any]

_ONE_GPU, _TIME, _TIMES = "one GPU", "time a kernel, ms", "times one GPU's"
_RATE, _OF_PYTORCH = "inferences a second", "times PyTorch's"
_SETTING = "fp32, batch 1"


def show(
    document: dict[str, Any],
    markdown: Callable[[dict[str, Any]], str],
    published: Callable[[Document], tuple[str, list[Verdict]]],
    json: Path | None,
) -> None:
    """Prints a result and the published table beside it, and writes it with the verdicts if there is to be a file.

    Args:
        document: the result, to which the verdicts are added.
        markdown: its own tables.
        published: `kernels` or `pytorch`.
        json: where it goes.
    """
    beside, verdicts = published(document)
    document["verdicts"] = [verdict.as_json() for verdict in verdicts]
    print(markdown(document))
    print(beside)
    if json:
        results.save(document, json)


def kernels(document: Document) -> tuple[str, list[Verdict]]:
    """The forum's table beside a result of kind "run", and the verdicts on its claims.

    A run's time is N devices over the answers a second: with requests always waiting, that is how long a device takes
    for one.
    """
    release = document["releases"]["onnxruntime"]
    most = max(len(row["devices"]) for row in document["rows"])
    on_gpus = all(device != "cpu" for row in document["rows"] for device in row["devices"])
    lines: dict[str, dict[str, Any]] = {}
    slowdowns: dict[str, list[float]] = {}
    for variant in dict.fromkeys(row["variant"] for row in document["rows"]):
        alone, together = (_run_times(document, variant, count) for count in (1, most))
        ratios = [together[number] / alone[number] for number in together if number in alone] if most > 1 else []
        slowdowns[variant] = ratios
        lines[f"{variant}, {_ONE_GPU}"] = {_TIME: Interval.of(1e3 * value for value in alone.values())}
        if most > 1:
            where = describe(next(row["devices"] for row in document["rows"] if len(row["devices"]) == most))
            times = Interval.of(1e3 * value for value in together.values())
            lines[f"{variant}, {where}"] = {_TIME: times, _TIMES: Interval.of(ratios)}
    missing = "it takes two GPUs" if most < 2 or not on_gpus else "that variant was not measured"
    what = "a run takes, times one GPU's,"
    verdicts = [
        judge(claim, f"{release}, {variant}", what, slowdowns.get(variant, []) if on_gpus else [],
              at_least=least, at_most=greatest, missing=missing)
        for claim, variant, least, greatest in (
            (claims.CONTENTION_OF_THREADS, "threads", 1.5, None),
            (claims.CONTENTION_OF_THREADS, "core", 1.5, None),
            (claims.CONTENTION_OF_THREADS, "core+graph", 1.5, None),
            (claims.PROCESSES_HAVE_NONE, "processes", None, 1.1),
        )
    ]  # fmt: skip
    return _text(reports.KERNELS, {release: lines}, verdicts), verdicts


def _run_times(document: Document, variant: str, devices: int) -> dict[int, float]:
    """Seconds a run on each of so many devices, by round."""
    return {
        one["round"]: devices / one["throughput"]
        for one in document["measurements"]
        if one["variant"] == variant and len(one["devices"]) == devices and one.get("throughput")
    }


def pytorch(document: Document) -> tuple[str, list[Verdict]]:
    """The article's table beside a result of kind "torch", and the verdicts on its claims."""
    release = document["releases"]["onnxruntime"]
    lines: dict[str, dict[str, Any]] = {}
    verdicts: list[Verdict] = []
    for place in ("host", "device"):
        setting = f"{_SETTING}, {place}"
        good = {
            (way["side"], way["name"]): way["seconds"]
            for one in document["measurements"]
            if one["setting"] == setting
            for way in one["ways"]
            if "error" not in way and way["equal"]
        }
        ours = good.get(("ortmulti", "pool" if place == "host" else "bound"), [])
        # As PyTorch is by default; where that was not measured, with algorithms searched.
        theirs = good.get(("pytorch", "eager, no cudnn.benchmark"), good.get(("pytorch", "eager"), []))
        pairs = [mine / other for mine, other in zip(ours, theirs, strict=False)]
        lines[f"PyTorch, {place}"] = {_RATE: _rates(theirs)}
        lines[f"ONNX Runtime, {place}"] = {
            _RATE: _rates(ours), _OF_PYTORCH: Interval.of(1 / ratio for ratio in pairs)
        }  # fmt: skip
        where = f"{release}, {setting}"
        verdicts.append(
            judge(claims.SLOWER_THAN_PYTORCH, where, "the default's time over PyTorch's", pairs,
                  at_least=1.0, missing="that setting was not measured")
        )  # fmt: skip
        row = next((row for row in document["rows"] if row["setting"] == setting), None)
        verdicts.append(_tuned(where, row))
    graphs = {
        f"'{way['name']}'"
        for one in document["measurements"]
        for way in one["ways"]
        if way["side"] == "ortmulti" and "graph" in way["name"] and "error" not in way and way["equal"]
    }
    outcome: Outcome = "does not hold" if graphs else "not measured"
    because = f"{', '.join(sorted(graphs))} gave PyTorch's outputs" if graphs else "no way with a CUDA graph worked"
    verdicts.append(Verdict(claims.NO_GRAPHS, release, outcome, because))
    return _text(reports.RESNET_ON_T4, {release: lines}, verdicts), verdicts


def _tuned(where: str, row: Mapping[str, Any] | None) -> Verdict:
    """On the fastest way of each side, by the ratio that the comparison has made within its rounds."""
    claim = claims.TUNED_NOT_EQUAL
    if row is None or row["ratio"] is None:
        return Verdict(claim, where, "not measured", "that setting was not measured")
    ratio = row["ratio"]
    outcome: Outcome = "holds" if ratio["low"] > 1 else "does not hold" if ratio["high"] <= 1 else "undecided"
    text = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
    return Verdict(claim, where, outcome, f"the fastest way's time over PyTorch's fastest {text}")


def _rates(seconds: Sequence[float]) -> Interval | None:
    return Interval.of(1 / value for value in seconds)


def _text(table: reports.Table, measured: Mapping[str, Measured], verdicts: Sequence[Verdict]) -> str:
    return f"{side_by_side(table, measured)}\n{lines_of(verdicts)}\n"
