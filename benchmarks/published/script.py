"""What the scripts of the reports' experiments share: arguments, cases measured in turns, and the result.

Each script measures the ONNX Runtime that Python finds. Another release comes first on PYTHONPATH:

    PYTHONPATH=$(python -m tools.unpack_release onnxruntime==1.30.0) python -m benchmarks.init_options --devices cpu
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.published.verdicts import Cell, Verdict, table
from ortmulti.bench.measure import fresh_process, page_cache, results
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.rounds import failure, measure_rounds
from ortmulti.errors import Error


def parser(description: str, *, repeat: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every script.

    Args:
        description: the script's docstring.
        repeat: rounds without --quick.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--devices", default="all", help="as `ortmulti bench create` takes them (default: all)")
    made.add_argument("--repeat", type=int, help=f"rounds (default: {repeat}, with --quick 1)")
    made.add_argument("--quick", action="store_true", help="small models, one round: whether everything works")
    made.add_argument("--budget", type=float, help="seconds for all rounds (default: any number)")
    made.add_argument("--timeout", type=float, default=600.0, help="seconds for one measurement (default: 600)")
    made.add_argument("--models", type=Path, default=Path("models"), help="the models' folder (default: models)")
    made.add_argument("--json", type=Path, help="where to write the result")
    made.set_defaults(default_repeat=repeat)
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments, "devices" as a tuple of names; wrong ones end the script with status 2 and one line."""
    args = made.parse_args(arguments)
    if args.repeat is None:
        args.repeat = 1 if args.quick else args.default_repeat
    if args.repeat < 1:
        made.error(f"each case is measured at least once, not {args.repeat} times")
    try:
        args.devices = parse_devices(args.devices)
    except Error as error:
        made.error(str(error))
    return args


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        name: by which results know it.
        module: the module whose `measure` a fresh process calls.
        spec: its argument, which JSON can carry.
        files: read into the page cache before.
        environment: variables of the process.
        prepare: whether it is measured once before anything counts, since it makes something that later measurements
            find. Of several rounds the first case always is: it loads the libraries from the disk.
        counted: whether it is measured at all, besides that.
    """

    name: str
    module: str
    spec: Mapping[str, Any]
    files: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: bool = False
    counted: bool = True


def files_of(model: Path) -> tuple[Path, ...]:
    """Return a model's files."""
    return (model, *page_cache.external_files(model))


def measure(cases: Sequence[Case], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every case once in each round, in turns.

    A failure becomes part of the result, and the others go on. Ctrl-C ends the rounds: what was measured by then is
    returned, and the measurement that comes next has failed.

    Args:
        cases: what to measure; their names are unique.
        args: see `parse`.

    Returns:
        For each measurement "case", "round" and what `measure` of the module returned, or "error" and "stderr".
    """

    def once(case: Case, number: int) -> dict[str, Any]:
        print(f"round {number + 1} of {args.repeat}: {case.name}", file=sys.stderr)
        page_cache.warm(case.files)
        try:
            found = fresh_process.run(case.module, dict(case.spec), args.timeout, case.environment)
        except fresh_process.MeasurementError as error:
            found = failure(error)
        return {**found, "case": case.name, "round": number}

    prepared = [once(case, -1) for case in cases if case.prepare or (case is cases[0] and args.repeat > 1)]
    # Others will show their errors again, counted.
    found = [one for one in prepared if "error" in one and not _by_name(cases)[one["case"]].counted]
    names = [case.name for case in cases if case.counted]
    rounds: list[dict[str, dict[str, Any]]] = []
    try:
        measure = lambda name, number: once(_by_name(cases)[name], number)  # noqa: E731
        measure_rounds(names, measure, args.repeat, budget=args.budget, found=rounds)
    except KeyboardInterrupt:
        if not any(rounds):
            raise
        missing = next((name for name in names if name not in rounds[-1]), names[0])
        rounds[-1][missing] = {"error": "interrupted", "stderr": "", "case": missing, "round": len(rounds) - 1}
    return found + [one for results in rounds for one in results.values()]


def _by_name(cases: Sequence[Case]) -> dict[str, Case]:
    return {case.name: case for case in cases}


def finish(
    name: str,
    args: argparse.Namespace,
    measurements: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Mapping[str, Cell]],
    verdicts: Sequence[Verdict],
    remark: str,
    models: Sequence[Path] = (),
    settings: Mapping[str, Any] | None = None,
) -> int:
    """Print the table, the verdicts and the remark, and write the result.

    Args:
        name: the script's.
        args: see `parse`.
        measurements: see `measure`.
        rows: of the table: by the line's name the cells by column.
        verdicts: on the claims.
        remark: what else there is to say.
        models: the measured ones.
        settings: what was measured, besides what the arguments say.

    Returns:
        The exit status: 1 if a measurement failed.
    """
    print(table(rows), *(f"- {verdict.line}" for verdict in verdicts), f"\n{remark}", sep="\n")
    if args.json:
        given = {key: getattr(args, key) for key in ("devices", "repeat", "quick", "budget", "timeout")}
        document = results.document(
            "experiment",
            experiment=name,
            settings={**given, **(settings or {})},
            models=[results.model_facts(model, files_of(model)[1:]) for model in models],
            rows={
                line: {column: vars(cell) if hasattr(cell, "median") else cell for column, cell in cells.items()}
                for line, cells in rows.items()
            },
            verdicts=[vars(verdict) for verdict in verdicts],
            measurements=list(measurements),
        )
        document["command"][0] = f"benchmarks/{name}.py"
        results.save(document, args.json)
    failed = dict.fromkeys(f"{one['case']}: {one['error']}" for one in measurements if "error" in one)
    for text in failed:
        print(f"failed: {' '.join(text.split())}", file=sys.stderr)
    return int(bool(failed))
