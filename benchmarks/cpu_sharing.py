"""What do eight sessions of one model on the CPU cost beside one?

Each case is a process of its own, in turns: one ordinary session of onnxruntime, and ortmulti's one and eight, each run
once. Memory is the proportional set size after the runs, in which a page that is mapped several times counts once; the
model's file in the page cache is not the processes' and counts only where they map it.

    python benchmarks/cpu_sharing.py --json sharing.json

Exit status 1 if eight sessions take more than --most-memory of one's memory or --most-creation of its creation, or if
an output differs from the ordinary session's in any bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ortmulti.bench import models
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import fresh_process, machine, page_cache
from ortmulti.bench.measure.rounds import alternating, measure_rounds, of_case
from ortmulti.bench.strategies import SessionSettings

MOST_MEMORY = 1.1
MOST_CREATION = 1.2
EIGHT = 8

ORDINARY, ONE, EIGHT_SHARED = "onnxruntime x1", "shared x1", f"shared x{EIGHT}"
CASES = {ORDINARY: ("sequential", 1), ONE: ("shared", 1), EIGHT_SHARED: ("shared", EIGHT)}


def measure(model: Path, repeat: int, threads: int, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Each case `repeat` times; what `ortmulti.bench.create.measure_strategy.measure` returns."""
    feeds = folder / "feeds.npz"
    write_arrays(feeds, models.sample_inputs(model))
    files = [model, *page_cache.external_files(model)]
    environment = {"ORTMULTI_CACHE": str(folder / "cache")}

    def create(name: str, _: int) -> dict[str, Any]:
        strategy, count = CASES[name]
        page_cache.warm(files)
        spec = {
            "strategy": strategy,
            "model": str(model),
            "devices": ["cpu"] * count,
            "settings": asdict(SessionSettings(intra_op_num_threads=threads)),
            "feeds": str(feeds),
        }
        return fresh_process.run("ortmulti.bench.create.measure_strategy", spec, 600.0, environment)

    # The first round loads the libraries from the disk, and does not count.
    rounds = measure_rounds([*CASES], create, repeat + 1, order=alternating)[1:]
    return {name: of_case(rounds, name) for name in CASES}


def summarize(measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians, the medians of the ratios within each round, and whether all outputs are the same."""

    def median(name: str, key: str) -> float:
        return float(statistics.median(result[key] for result in measured[name]))

    def ratio(name: str, key: str) -> float:
        """Of eight sessions to the case `name`."""
        rounds = zip(measured[EIGHT_SHARED], measured[name], strict=True)
        return float(statistics.median(eight[key] / other[key] for eight, other in rounds))

    outputs = {digest for results in measured.values() for result in results for digest in result["outputs"]}
    return {
        "pss": {name: median(name, "pss") for name in measured},
        "creation": {name: median(name, "creation") for name in measured},
        "memory_of_one": ratio(ONE, "pss"),
        "memory_of_ordinary": ratio(ORDINARY, "pss"),
        "creation_of_one": ratio(ONE, "creation"),
        "creation_of_ordinary": ratio(ORDINARY, "creation"),
        "identical": len(outputs) == 1,
        "not_shared": sorted(
            {reason for results in measured.values() for result in results for reason in reasons(result)}
        ),
    }


def reasons(result: dict[str, Any]) -> list[str]:
    found: list[str] = result["details"].get("not_shared", [])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="an .onnx file (default: a matmul, made for it)")
    parser.add_argument("--megabytes", type=int, default=512, help="size of that matmul (default: 512)")
    parser.add_argument("--repeat", type=int, default=5, help="processes of each case (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="of each session (default: 1)")
    parser.add_argument("--most-memory", type=float, default=MOST_MEMORY, help=f"default: {MOST_MEMORY}")
    parser.add_argument("--most-creation", type=float, default=MOST_CREATION, help=f"default: {MOST_CREATION}")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        folder = Path(name)
        model = args.model or models.make("matmul", folder, megabytes=args.megabytes)
        measured = measure(model, args.repeat, args.threads, folder)
    summary = summarize(measured)
    for name in CASES:
        print(f"{name}: {summary['pss'][name] / 1e6:.0f} MB, created in {summary['creation'][name]:.3f} s")
    print(
        f"{EIGHT} sessions take {summary['memory_of_one']:.3f} of one's memory ({summary['memory_of_ordinary']:.3f} of "
        f"an ordinary one's) and {summary['creation_of_one']:.3f} of its creation "
        f"({summary['creation_of_ordinary']:.3f}); outputs {'identical' if summary['identical'] else 'DIFFER'}"
    )
    for reason in summary["not_shared"]:
        print(f"not shared: {reason}")
    if args.json:
        report = {
            "model": model.stem,
            "threads": args.threads,
            "summary": summary,
            "measured": measured,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    missed = (
        max(summary["memory_of_one"], summary["memory_of_ordinary"]) > args.most_memory
        or max(summary["creation_of_one"], summary["creation_of_ordinary"]) > args.most_creation
        or not summary["identical"]
    )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
