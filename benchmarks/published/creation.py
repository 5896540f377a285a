"""The report's comparison of strategies, for a small model and for a large one, with ours beside them."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.published import claims, releases, reports, script
from ortmulti import _core
from ortmulti.bench import models, strategies
from ortmulti.bench.create.plan import efficiencies
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import page_cache, results
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval
from ortmulti.bench.strategies import SessionSettings
from ortmulti.errors import Error, InvalidArgument

from .verdicts import Verdict, figures, judge, ratios

READY, FIRST_RUN = "ready", "first_run"
_FIRST_RUN_COLUMN, _BOTH_COLUMN = "first run, s", "wall and first run, s"


def main(
    name: str,
    table: reports.Table,
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    make: Callable[[script.Arguments], Path],
) -> int:
    """A script: measures, or shows results that there are.

    Args:
        name: its name.
        table: what the report published.
        parser: its arguments, to which --from is added.
        arguments: the command line's.
        make: makes the model.

    Returns:
        The exit status.
    """
    parser.add_argument(
        "--from",
        type=Path,
        nargs="+",
        default=[],
        dest="results",
        metavar="FILE",
        help="show these results of `ortmulti bench create`, of a release each, instead of measuring",
    )
    args = script.parse(parser, arguments)
    if not args.own.results:
        return script.finish(experiment(name, table, make(args), args), args)
    if args.json:
        parser.error("--json writes what is measured; --from measures nothing")
    model = "resnet50" if table is reports.SMALL_MODEL else "phi3-mini"
    try:
        report = from_results(name, table, [_load(path) for path in args.own.results], model)
    except Error as error:
        parser.error(str(error))
    return script.finish(report, args)


def _load(path: Path) -> dict[str, Any]:
    """A result, also one of schema version 1, where starting has what later is creation: their sum is the same."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} is not a result file: {error}") from error
    if not isinstance(document, dict) or document.get("schema_version") not in (1, 2, results.SCHEMA_VERSION):
        raise InvalidArgument(f"{path} is no result that this release reads")
    return document


def experiment(name: str, table: reports.Table, model: Path, args: script.Arguments) -> script.Report:
    """Measures every strategy with every release, in turns.

    Args:
        name: the script's.
        table: what the report published.
        model: the .onnx file.
        args: the script's arguments.
    """
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        feeds = Path(folder) / "feeds.npz"
        write_arrays(feeds, models.sample_inputs(model))
        settings = SessionSettings.side_by_side(args.devices, _core.usable_cores())
        cases = [
            releases.Case(
                strategy,
                "ortmulti.bench.create.measure_strategy",
                {
                    "strategy": strategy,
                    "model": str(model),
                    "devices": list(args.devices),
                    "settings": asdict(settings),
                    "feeds": str(feeds),
                },
                (model, *page_cache.external_files(model)),
                # An entry depends on the release that made it, and each finds its own in there.
                {"ORTMULTI_CACHE": str(Path(folder) / "cache")},
                prepare=strategy == "shared",
            )
            for strategy in strategies.names()
        ]
        measurements = releases.measure(
            cases, args.releases, args.repeat, timeout=args.timeout, budget=args.budget, tell=args.tell
        )
    return _report(
        name,
        table,
        _with_sums(measurements),
        [release.name for release in args.releases],
        args.devices,
        [script.model_facts(model)],
        {"intra_op_num_threads": settings.intra_op_num_threads},
    )


def from_results(name: str, table: reports.Table, documents: Sequence[Mapping[str, Any]], model: str) -> script.Report:
    """The same from results of `ortmulti bench create`, of a release each, for the most devices in them.

    Args:
        name: the script's.
        table: what the report published.
        documents: the results.
        model: the model's name, as their models have it; a result of one model is of that one.

    Raises:
        InvalidArgument: one is of another kind, or does not have the model; or they differ in their devices.
    """
    found: list[dict[str, Any]] = []
    sets, facts = set(), []
    for document in documents:
        there = document.get("models", [])
        mine = [one for one in there if one["name"] == model or len(there) == 1]
        if document["kind"] != "create" or not mine:
            raise InvalidArgument(f"a result of {document['kind']} is no comparison of the creation of {model}")
        facts = mine
        devices = max((tuple(one["devices"]) for one in document["measurements"]), key=len)
        sets.add(devices)
        counts: dict[str, int] = {}
        for one in document["measurements"]:
            if tuple(one["devices"]) == devices and one["model"] == mine[0]["path"]:
                number = counts[one["strategy"]] = counts.get(one["strategy"], -1) + 1
                release = document["releases"]["onnxruntime"]
                found.append({**one, "case": one["strategy"], "release": release, "round": number})
    if len(sets) != 1:
        raise InvalidArgument(f"the results are of different devices: {', '.join(map(describe, sorted(sets)))}")
    releases = [document["releases"]["onnxruntime"] for document in documents]
    return _report(name, table, _with_sums(found), releases, sets.pop(), facts, {})


def _with_sums(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for one in measurements:
        if "error" not in one:
            one[READY] = one["starting"] + one["creation"]
            one["both"] = one[READY] + one[FIRST_RUN]
    return measurements


def _report(
    name: str,
    table: reports.Table,
    measurements: list[dict[str, Any]],
    releases: Sequence[str],
    devices: Sequence[str],
    facts: list[dict[str, Any]],
    settings: Mapping[str, Any],
) -> script.Report:
    measured = {release: rows(measurements, release, len(devices)) for release in releases}
    return script.Report(
        name,
        measurements,
        tables=[(table, measured, (_FIRST_RUN_COLUMN, _BOTH_COLUMN))],
        verdicts=[verdict for release in releases for verdict in judged(table, measurements, release, len(devices))],
        remarks=[
            f"{facts[0]['name']} on {describe(devices)}. wall: from before the workers' start until every session can "
            "run, opening ONNX Runtime and the CUDA libraries included; S and (S-1)/(N-1) are of walls in the same "
            "round.",
        ],
        models=facts,
        settings=settings,
    )


def rows(measurements: Sequence[dict[str, Any]], release: str, sessions: int) -> dict[str, dict[str, Any]]:
    """The measured lines, by strategy."""
    found = {}
    for strategy in strategies.names():
        speedups = ratios(measurements, release, "sequential", strategy, READY)
        found[strategy] = {
            reports.WALL: Interval.of(figures(measurements, release, strategy, READY)),
            reports.SPEEDUP: Interval.of(speedups) if strategy != "sequential" else None,
            reports.EFFICIENCY: Interval.of(parallel(speedups, sessions)) if strategy != "sequential" else None,
            _FIRST_RUN_COLUMN: Interval.of(figures(measurements, release, strategy, FIRST_RUN)),
            _BOTH_COLUMN: Interval.of(figures(measurements, release, strategy, "both")),
        }
    return found


def parallel(speedups: Sequence[float], sessions: int) -> list[float]:
    """(S-1)/(N-1), the report's efficiency; nothing for one session."""
    found = (efficiencies(speedup, sessions)[1] for speedup in speedups)
    return [value for value in found if value is not None]


def judged(table: reports.Table, measurements: Sequence[dict[str, Any]], release: str, sessions: int) -> list[Verdict]:
    """The claims on a small model, or on a large one."""
    speedups = {
        strategy: ratios(measurements, release, "sequential", strategy, READY) for strategy in ("threads", "processes")
    }
    threads = parallel(speedups["threads"], sessions)
    over = ratios(measurements, release, "processes", "threads", READY)
    cases = {one["case"] for one in measurements if one["release"] == release}
    whole = {"sequential", "threads", "processes"} <= cases
    missing = "it takes two devices" if sessions < 2 else "it failed" if whole else "not all of these were measured"
    what = "(S-1)/(N-1) of threads"
    linear = [speedup / sessions for speedup in speedups["processes"]]
    if table is reports.SMALL_MODEL:
        return [
            judge(claims.SMALL_THREADS, release, what, threads, at_least=0.841 / 2, missing=missing),
            judge(claims.SMALL_PROCESSES, release, "processes' wall over threads'", over, at_least=1, missing=missing),
        ]
    gain = [1 / value for value in over]
    bound = claims.half_of(7.48 / 4.38)
    return [
        judge(claims.LARGE_THREADS, release, what, threads, at_most=2 * 0.151, missing=missing),
        judge(claims.LARGE_PROCESSES, release, "threads' wall over processes'", gain, at_least=bound, missing=missing),
        judge(claims.NEAR_LINEAR, release, "S/N of processes", linear, at_least=0.8, missing=missing),
    ]
