"""What is the time until the first answers spent on, for a model on several devices, and is it what the report says?

`ortmulti diagnose` with each release, in a process of its own: every way to create sessions traced by cause,
what each serializes on, which is predicted to be best, and the finding that would help most. Beside it stand the
report's explanation (the GIL), what it says makes a single session slow, and its recommendation (processes).

    python benchmarks/session_diagnostics.py --model model.onnx --devices 0,1,2,3 --releases 1.30.0,1.31.1
    python benchmarks/session_diagnostics.py --from diagnose-1.30.0.json diagnose-1.31.1.json

Exit status 1 if a diagnosis failed or was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import claims, releases, reports, script
from benchmarks.published.claims import Claim
from benchmarks.published.verdicts import Verdict
from ortmulti.bench import models
from ortmulti.bench.create.tables import number
from ortmulti.bench.measure import results

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


def sessions(document: Document) -> int:
    return max((len(run["devices"]) for run in document["runs"]), default=0)


def columns(document: Document) -> dict[str, tuple[str, int]]:
    """The ways and numbers of devices of the table, by its columns' names."""
    most = sessions(document)
    wanted = {"sequential x1, share": ("sequential", 1), f"threads x{most}, share": ("threads", most)}
    return {**wanted, f"shared x{most}, share": ("shared", most)}


def rows(document: Document) -> dict[str, dict[str, Any]]:
    """The measured lines, by cause; causes that are nowhere 0.5% are left out."""
    found: dict[str, dict[str, Any]] = {}
    for column, (way, count) in columns(document).items():
        for cause, share in shares(document, way, count).items():
            found.setdefault(cause, {})[column] = share
    return {cause: cells for cause, cells in found.items() if max(cells.values()) >= 0.005}


def verdicts(document: Document, release: str) -> list[Verdict]:
    """On the report's cause, on what it says of a single session, and on its recommendation."""
    return [_root_cause(document, release), _first_session(document, release), _recommendation(document, release)]


def _verdict(claim: Claim, release: str, holds: bool, because: str) -> Verdict:
    return Verdict(claim, release, "holds" if holds else "does not hold", because)


def _root_cause(document: Document, release: str) -> Verdict:
    claim = claims.ROOT_CAUSE
    threads = [one for one in document.get("serialization", []) if one["way"] == "threads"]
    if not threads:
        return Verdict(claim, release, "not measured", "it takes two devices")
    found = {part["what"]: part["share"] for part in threads[0]["on"]}
    text = ", ".join(f"{what} {share:.0%}" for what, share in found.items()) or "nothing in particular"
    return _verdict(claim, release, found.get("gil", 0.0) >= LEAST, f"threads serialize on: {text}")


def _first_session(document: Document, release: str) -> Verdict:
    claim = claims.SLOW_FIRST_SESSION
    found = shares(document, "sequential", 1)
    if not found:
        return Verdict(claim, release, "not measured", "there is no trace of one session")
    init = {cause: share for cause, share in found.items() if cause not in OUTSIDE}
    whole = sum(init.values()) or 1.0
    named = sum(share for cause, share in init.items() if cause.startswith(NAMED)) / whole
    most = sorted(init.items(), key=lambda item: -item[1])[:3]
    text = ", ".join(f"{cause} {share / whole:.0%}" for cause, share in most)
    return _verdict(claim, release, named >= LEAST, f"these are {named:.0%}; the most: {text}")


def _recommendation(document: Document, release: str) -> Verdict:
    claim, prediction = claims.USE_PROCESSES, document.get("prediction")
    if not prediction or "processes" not in prediction["seconds"]:
        return Verdict(claim, release, "not measured", "processes were not measured")
    seconds = sorted(prediction["seconds"].items(), key=lambda item: item[1])
    text = ", ".join(f"{way} {number(value)} s" for way, value in seconds)
    best = prediction["best"] == "processes" or "processes" in prediction.get("equal", [])
    return _verdict(claim, release, best, f"until all sessions are created: {text}")


def remarks(document: Document, release: str) -> list[str]:
    """What the diagnosis finds, in a few lines."""
    texts = [f"{release}: partial: {document['partial']}."] if document.get("partial") else []
    unexplained = [
        1 - run["explained"]
        for run in document["runs"]
        if run["experiment"] == "trace" and run.get("explained") is not None
    ]
    if unexplained:
        texts.append(f"{release}: unexplained: at most {max(unexplained):.1%} of a trace's time.")
    for finding in document.get("findings", [])[:1]:
        verified = finding.get("verified")
        proof = (
            f" Verified: {number(verified['before'])} s before, {number(verified['after'])} s after."
            if verified
            else ""
        )
        title, change = (finding[key].rstrip(".") for key in ("title", "change"))
        texts.append(f"{release}: first finding: {title}; change: {change}.{proof}")
    return texts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "")
    parser.add_argument("--model", type=Path, help="an .onnx file (default: resnet50)")
    parser.add_argument("--num-gpus", type=int, help="as many of the devices, as the report's script has it")
    parser.add_argument(
        "--from", type=Path, nargs="+", default=[], dest="results", metavar="FILE",
        help="show these documents of `ortmulti diagnose --json`, of a release each",
    )  # fmt: skip
    args = script.parse(parser, arguments)
    own, facts = args.own, []
    documents: dict[str, Document] = {}
    failed: list[dict[str, Any]] = []
    for path in own.results:
        document = results.load(path)
        documents[document["releases"]["onnxruntime"]] = document
    if not own.results:
        model = own.model or models.make(*(("matmul",) if args.quick else ("resnet50",)), args.models,
                                         megabytes=4 if args.quick else None)  # fmt: skip
        facts = [script.model_facts(model)]
        for release in args.releases:
            args.tell(f"diagnosing {model.stem} with {release.name}")
            spec = {
                "model": str(model),
                "devices": list(args.devices[: own.num_gpus]),
                "quick": args.quick,
                "repeat": None if args.quick else args.repeat,
                "budget": args.budget,
            }
            case = releases.Case("diagnose", "benchmarks.published.diagnose_worker", spec)
            result = releases.once(case, release, args.timeout)
            if "error" in result:
                failed.append({"case": case.name, "release": release.name, "round": 0, **result})
            else:
                documents[release.name] = result
    failed += [
        {"case": "diagnose", "release": name, "round": 0, "error": f"partial: {document['partial']}"}
        for name, document in documents.items()
        if document.get("partial")
    ]
    measured = {name: rows(document) for name, document in documents.items()}
    shown = list(dict.fromkeys(column for document in documents.values() for column in columns(document)))
    report = script.Report(
        "session_diagnostics",
        [*failed, *({"case": "diagnose", "release": name, "round": 0, **one} for name, one in documents.items())],
        tables=[(reports.CAUSES, measured, shown)],
        verdicts=[verdict for name, document in documents.items() for verdict in verdicts(document, name)],
        remarks=[text for name, document in documents.items() for text in remarks(document, name)],
        models=facts,
    )
    return script.finish(report, args)


if __name__ == "__main__":
    sys.exit(main())
