"""What is the time until the first answers spent on, for a model on several devices, and is it what the report says?

Documents of `ortmulti diagnose` beside the report's explanation (the GIL), what it says makes a single session slow,
and its recommendation (processes).

    ortmulti diagnose model.onnx --devices 0,1,2,3 --json diagnosis.json
    python -m benchmarks.session_diagnostics diagnosis.json

Exit status 1 if a diagnosis was not complete.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.published.verdicts import Cell, Verdict, table
from ortmulti.bench.measure import results
from ortmulti.bench.reports.tables import number

Document = Mapping[str, Any]

LEAST = 0.5
# What comes before anything of ONNX Runtime, and the measuring itself: no part of "init".
OUTSIDE = ("interpreter", "imports", "measurement")
# cuDNN's search, graph optimization and CUDA's start: what the report names, by how the causes' names begin.
NAMED = ("algorithm search", "optimization", "cuInit", "context")


def runs(document: Document, way: str, devices: int) -> list[Mapping[str, Any]]:
    """The traces of a way on so many devices, from a warm page cache, that did not fail."""
    return [
        run
        for run in document["runs"]
        if run["experiment"] == "trace" and run["way"] == way and len(run["devices"]) == devices
        and run.get("cache", "warm") == "warm" and not run.get("error")
    ]  # fmt: skip


def shares(document: Document, way: str, devices: int) -> dict[str, float]:
    """The mean share of each cause in the time from the process's start to the last first answer."""
    found = runs(document, way, devices)
    causes = dict.fromkeys(cause for run in found for cause in run["causes"])
    return {cause: sum(run["causes"].get(cause, 0.0) / run["wall"] for run in found) / len(found) for cause in causes}


def rows(document: Document) -> dict[str, dict[str, Cell]]:
    """The measured lines, by cause; causes that are nowhere 0.5% are left out."""
    most = max((len(run["devices"]) for run in document["runs"]), default=0)
    found: dict[str, dict[str, float]] = {}
    for way, count in (("sequential", 1), ("threads", most), ("shared", most)):
        for cause, share in shares(document, way, count).items():
            found.setdefault(cause, {})[f"{way} x{count}, share"] = share
    return {cause: {**cells} for cause, cells in found.items() if max(cells.values()) >= 0.005}


def judged(document: Document) -> list[Verdict]:
    """On the report's cause, on what it says of a single session, and on its recommendation."""
    return [_root_cause(document), _first_session(document), _recommendation(document)]


def _verdict(claim: str, holds: bool, because: str) -> Verdict:
    return Verdict(claim, "holds" if holds else "does not hold", because)


def _root_cause(document: Document) -> Verdict:
    claim = "report: threads fail because of the GIL"
    threads = [one for one in document.get("serialization", []) if one["way"] == "threads"]
    if not threads:
        return Verdict(claim, "not measured", "it takes two devices")
    found = {part["what"]: part["share"] for part in threads[0]["on"]}
    text = ", ".join(f"{what} {share:.0%}" for what, share in found.items()) or "nothing in particular"
    return _verdict(claim, found.get("gil", 0.0) >= LEAST, f"threads serialize on: {text}")


def _first_session(document: Document) -> Verdict:
    claim = "report: a session's init is slow because of algorithm search, optimization and CUDA's start"
    found = shares(document, "sequential", 1)
    if not found:
        return Verdict(claim, "not measured", "there is no trace of one session")
    init = {cause: share for cause, share in found.items() if cause not in OUTSIDE}
    whole = sum(init.values()) or 1.0
    named = sum(share for cause, share in init.items() if cause.startswith(NAMED)) / whole
    most = sorted(init.items(), key=lambda item: -item[1])[:3]
    text = ", ".join(f"{cause} {share / whole:.0%}" for cause, share in most)
    return _verdict(claim, named >= LEAST, f"these are {named:.0%}; the most: {text}")


def _recommendation(document: Document) -> Verdict:
    claim, prediction = "report: processes are the primary recommendation", document.get("prediction")
    if not prediction or "processes" not in prediction["seconds"]:
        return Verdict(claim, "not measured", "processes were not measured")
    seconds = sorted(prediction["seconds"].items(), key=lambda item: item[1])
    text = ", ".join(f"{way} {number(value)} s" for way, value in seconds)
    best = prediction["best"] == "processes" or "processes" in prediction.get("equal", [])
    return _verdict(claim, best, f"until all sessions are created: {text}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, nargs="+", metavar="FILE", help="of `ortmulti diagnose --json`")
    args = parser.parse_args(arguments)
    partial = False
    for path in args.documents:
        document = results.load(path)
        release = document["releases"]["onnxruntime"]
        print(f"{document['models'][0]['name']}, onnxruntime {release}:\n\n{table(rows(document))}\n")
        print(*(f"- {verdict.line}" for verdict in judged(document)), sep="\n", end="\n\n")
        if document.get("partial"):
            print(f"{path} is partial: {document['partial']}", file=sys.stderr)
            partial = True
    return int(partial)


if __name__ == "__main__":
    sys.exit(main())
