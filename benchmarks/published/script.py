"""What the scripts of the reports' experiments have in common: arguments, the result, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.published import releases
from ortmulti.bench.measure import page_cache, results
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.errors import Error

from .releases import Release
from .reports import Table
from .verdicts import Measured, Verdict, as_json, lines_of, side_by_side


@dataclass(frozen=True)
class Arguments:
    """What every script is told.

    Attributes:
        devices: one for each session.
        releases: with which to measure.
        repeat: rounds.
        quick: whether small models and few rounds will do.
        budget: seconds for the rounds; None: any number.
        timeout: seconds for one measurement.
        models: the folder for generated models.
        json: where the result goes, if anywhere.
        own: the script's own arguments.
    """

    devices: tuple[str, ...]
    releases: tuple[Release, ...]
    repeat: int
    quick: bool
    budget: float | None
    timeout: float
    models: Path
    json: Path | None
    own: argparse.Namespace

    @property
    def on_gpus(self) -> bool:
        """Whether every device is a GPU."""
        return "cpu" not in self.devices

    def tell(self, text: str) -> None:
        """Says on standard error what is being measured."""
        print(text, file=sys.stderr)


def parser(description: str, *, repeat: int = 5, with_releases: bool = True) -> argparse.ArgumentParser:
    """A parser with the arguments of every script.

    Args:
        description: the script's docstring.
        repeat: rounds without --quick.
        with_releases: whether the script can measure with several releases.
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--devices", default="all", help="as `ortmulti bench create` takes them (default: all)")
    if with_releases:
        made.add_argument(
            "--releases",
            default="",
            help="releases of ONNX Runtime, such as 1.30.0,1.31.1; those that are neither installed nor in a "
            "--release-dir are unpacked into build/releases (default: the installed one and all --release-dir)",
        )
        made.add_argument(
            "--release-dir", action="append", default=[], metavar="VERSION=FOLDER", help="where one lies unpacked"
        )
    made.add_argument("--repeat", type=int, help=f"rounds (default: {repeat}, with --quick 1)")
    made.add_argument("--quick", action="store_true", help="small models, one round: whether everything works")
    made.add_argument("--budget", type=float, help="seconds for all rounds (default: any number)")
    made.add_argument("--timeout", type=float, default=600.0, help="seconds for one measurement (default: 600)")
    made.add_argument("--models", type=Path, default=Path("models"), help="the models' folder (default: models)")
    made.add_argument("--json", type=Path, help="where to write the result")
    made.set_defaults(default_repeat=repeat)
    return made


def parse(made: argparse.ArgumentParser, arguments: Sequence[str] | None) -> Arguments:
    """The arguments; what cannot be ends the script with status 2 and one line."""
    args = made.parse_args(arguments)
    repeat = args.repeat if args.repeat is not None else 1 if args.quick else args.default_repeat
    if repeat < 1:
        made.error(f"each case is measured at least once, not {repeat} times")
    try:
        names = [name.strip() for name in getattr(args, "releases", "").split(",") if name.strip()]
        folders = dict(releases.parse_folder(text) for text in getattr(args, "release_dir", []))
        return Arguments(
            devices=parse_devices(args.devices),
            releases=releases.find(names, folders),
            repeat=repeat,
            quick=args.quick,
            budget=args.budget,
            timeout=args.timeout,
            models=args.models,
            json=args.json,
            own=args,
        )
    except Error as error:
        made.error(str(error))


@dataclass
class Report:
    """What a script found.

    Attributes:
        name: the script's.
        measurements: see `releases.measure`.
        tables: published tables, with what was measured by release; and measured columns that were not published.
        verdicts: on the claims.
        remarks: what else there is to say, a line each.
        models: facts of the models: see `model_facts`.
        settings: what was measured, besides what the arguments say.
    """

    name: str
    measurements: list[dict[str, Any]]
    tables: list[tuple[Table, Mapping[str, Measured], Sequence[str]]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def document(self, arguments: Arguments) -> dict[str, Any]:
        """The result, kind "experiment"; see `ortmulti.bench.measure.results`."""
        document = results.document(
            "experiment",
            experiment=self.name,
            settings={
                "devices": list(arguments.devices),
                "repeat": arguments.repeat,
                "quick": arguments.quick,
                "budget": arguments.budget,
                "timeout": arguments.timeout,
                **self.settings,
            },
            measured_releases=[release.as_json() for release in arguments.releases],
            models=self.models,
            tables=[
                {"published": table.as_json(), "measured": as_json(measured)} for table, measured, _ in self.tables
            ],
            verdicts=[verdict.as_json() for verdict in self.verdicts],
            remarks=self.remarks,
            measurements=self.measurements,
        )
        document["command"][0] = f"benchmarks/{self.name}.py"
        return document

    def markdown(self) -> str:
        """Tables, verdicts and remarks."""
        parts = [side_by_side(*table) for table in self.tables]
        if self.verdicts:
            parts.append(lines_of(self.verdicts) + "\n")
        if self.remarks:
            parts.append("\n".join(self.remarks) + "\n")
        return "\n".join(parts)


def finish(report: Report, arguments: Arguments) -> int:
    """Prints the report and writes the result. Returns the exit status: 1 if a measurement failed."""
    print(report.markdown())
    if arguments.json:
        results.save(report.document(arguments), arguments.json)
    failed = list(dict.fromkeys(releases.failures(report.measurements)))
    for text in failed:
        print(f"failed: {' '.join(text.split())}", file=sys.stderr)
    return int(bool(failed))


def model_facts(model: Path) -> dict[str, Any]:
    """What a result says of a model."""
    return results.model_facts(model, page_cache.external_files(model))
