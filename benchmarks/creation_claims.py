"""How fast do sessions of a model become ready on several devices: one after the other, by Python threads, by
processes, and by ortmulti? What the report claims of it, for results of `ortmulti bench create`.

The report has a small model, ResNet-50, and a large one of 7.2 GB; phi3-mini is a decoder of 7.64 GB.

    ortmulti bench create resnet50 phi3-mini --devices 0,1,2,3 --json create.json
    python -m benchmarks.creation_claims create.json

Its "efficiency" is (S-1)/(N-1), with the speedup S over sequential on N devices. A wall is from before the workers'
start until every session can run; the speedups are of walls in the same round. Claims on a large model are for all
models but ResNet-50.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.published.verdicts import Cell, Verdict, figures, half_of, judge, ratios, table
from ortmulti._runtime.regular_file import read_json
from ortmulti.bench.create.plan import efficiencies
from ortmulti.bench.measure import results
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval
from ortmulti.errors import InvalidArgument

Measurements = Sequence[Mapping[str, Any]]


def load(path: Path) -> dict[str, Any]:
    """Return a result, also one of schema version 1, where starting has what later is creation: their sum is the same.

    Raises:
        InvalidArgument: It is none of `ortmulti bench create`.
    """
    try:
        document: dict[str, Any] = read_json(path, 1 << 26)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} is not a result file: {error}") from error
    if document.get("schema_version") not in (1, 2, results.SCHEMA_VERSION) or document.get("kind") != "create":
        raise InvalidArgument(f"{path} is no result of `ortmulti bench create` that this release reads")
    return document


def on_most_devices(document: Mapping[str, Any], model: str) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """Return the most devices in a result, and a model's measurements on them, each with "case", "round", the "wall"
    and "both": with the first run.
    """
    devices = max((one["devices"] for one in document["measurements"]), key=len)
    counts: dict[str, int] = {}
    found = []
    for one in document["measurements"]:
        if one["devices"] == devices and one["model"] == model:
            number = counts[one["strategy"]] = counts.get(one["strategy"], -1) + 1
            added = {"case": one["strategy"], "round": number}
            if "error" not in one:
                added["wall"] = one["starting"] + one["creation"]
                added["both"] = added["wall"] + one["first_run"]
            found.append({**one, **added})
    return devices, found


def speedups(measurements: Measurements, strategy: str) -> list[float]:
    return ratios(measurements, "sequential", strategy, "wall")


def parallel(found: Sequence[float], sessions: int) -> list[float]:
    """Return (S-1)/(N-1) for each speedup, the report's efficiency; nothing for one session."""
    shares = (efficiencies(speedup, sessions)[1] for speedup in found)
    return [value for value in shares if value is not None]


def rows(measurements: Measurements, sessions: int) -> dict[str, dict[str, Cell]]:
    """Return the measured lines, by strategy."""
    return {
        strategy: {
            "wall, s": Interval.of(figures(measurements, strategy, "wall")),
            "S": Interval.of(speedups(measurements, strategy)),
            "(S-1)/(N-1)": Interval.of(parallel(speedups(measurements, strategy), sessions)),
            "first run, s": Interval.of(figures(measurements, strategy, "first_run")),
            "wall and first run, s": Interval.of(figures(measurements, strategy, "both")),
        }
        for strategy in dict.fromkeys(one["case"] for one in measurements)
    }


def judged(measurements: Measurements, sessions: int, small: bool) -> list[Verdict]:
    """Return the verdicts on the claims about a small model, or about a large one."""
    over = ratios(measurements, "processes", "threads", "wall")
    missing = "it takes two devices" if sessions < 2 else "sequential, threads or processes were not measured"
    threads = parallel(speedups(measurements, "threads"), sessions)
    what = "(S-1)/(N-1) of threads"
    if small:
        return [
            judge("report: threads work well for a small model (84%)", what, threads, at_least=0.841 / 2,
                  missing=missing),
            judge("report: for a small model processes are slower than threads", "processes' wall over threads'", over,
                  at_least=1, missing=missing),
        ]  # fmt: skip
    linear = [speedup / sessions for speedup in speedups(measurements, "processes")] if sessions > 1 else []
    return [
        judge("report: for a large model threads are effectively serial (15%)", what, threads, at_most=2 * 0.151,
              missing=missing),
        judge("report: for a large model processes are much faster than threads (4.38 s instead of 7.48)",
              "threads' wall over processes'", [1 / value for value in over], at_least=half_of(7.48 / 4.38),
              missing=missing),
        # The report's own is 0.62.
        judge("report: processes scale nearly linearly", "S/N of processes", linear, at_least=0.8, missing=missing),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE", help="results of `ortmulti bench create`")
    args = parser.parse_args(arguments)
    for path in args.results:
        try:
            document = load(path)
        except InvalidArgument as error:
            parser.error(str(error))
        for model in document["models"]:
            devices, measurements = on_most_devices(document, model["path"])
            print(f"{model['name']} on {describe(devices)}, onnxruntime {document['releases']['onnxruntime']}:\n")
            print(table(rows(measurements, len(devices))), end="\n\n")
            for verdict in judged(measurements, len(devices), model["name"].startswith("resnet50")):
                print(f"- {verdict.line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
