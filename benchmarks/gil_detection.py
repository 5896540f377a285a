"""Does ONNX Runtime hold the GIL while it creates a session, and for longer the larger the model is?

A heartbeat thread sleeps for a millisecond, again and again, beside the creation of a session (`ortmulti bench gil`
measures the same for one model): how late its beats are is how long Python threads stand still. For models of several
sizes, with onnxruntime's sessions and ortmulti's, and with several releases.

    python benchmarks/gil_detection.py --releases 1.30.0,1.31.1

Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.published import claims, releases, reports, script
from benchmarks.published.verdicts import Verdict, figures, judge
from ortmulti.bench import models
from ortmulti.bench.measure import gil, page_cache
from ortmulti.bench.measure.rounds import Interval

SIZES, QUICK_SIZES = (64, 256, 1024), (4, 16)
HELD_SHARE, LONGER = 0.5, 2.0
SHARE, SECONDS = "others stand still, share", "others stand still, s"


def case_name(library: str, megabytes: int) -> str:
    return f"{library}, {megabytes} MB"


def verdicts(measurements: Sequence[dict[str, Any]], release: str, sizes: Sequence[int]) -> list[Verdict]:
    """On whether the GIL is held, and for longer with a larger model."""
    smallest, largest = (case_name("onnxruntime", size) for size in (min(sizes), max(sizes)))
    shares = figures(measurements, release, largest, "delay_share")
    held = judge(claims.GIL_IS_HELD, release, "share of the creation", shares, at_least=HELD_SHARE, missing="it failed")
    short, long = (figures(measurements, release, case, "delay") for case in (smallest, largest))
    # Where it is not held the delays are the machine's, and nothing grows.
    grown = [
        b / max(a, gil.BEAT_SECONDS) if share >= HELD_SHARE else 0.0
        for a, b, share in zip(short, long, shares, strict=False)
    ]
    what = f"the {max(sizes)} MB model's delay over the {min(sizes)} MB model's (0: it is not held)"
    return [held, judge(claims.GIL_BY_MODEL_SIZE, release, what, grown, at_least=LONGER, missing="it failed")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "")
    parser.add_argument("--threads", type=int, default=0, help="of each session (default: 0, ONNX Runtime's default)")
    args = script.parse(parser, arguments)
    sizes = QUICK_SIZES if args.quick else SIZES
    cases, facts = [], []
    for size in sizes:
        model = models.make("matmul", args.models, megabytes=size)
        facts.append(script.model_facts(model))
        for library in gil.LIBRARIES:
            spec = {
                "library": library,
                "model": str(model),
                "device": args.devices[0],
                "threads": args.own.threads,
            }
            files = (model, *page_cache.external_files(model))
            # Both libraries are read from the disk by the first of their cases.
            cases.append(
                releases.Case(
                    case_name(library, size),
                    "ortmulti.bench.measure.gil",
                    spec,
                    files,
                    prepare=args.repeat > 1 and size == sizes[0],
                )
            )
    measurements = releases.measure(
        cases, args.releases, args.repeat, timeout=args.timeout, budget=args.budget, tell=args.tell
    )
    measured = {
        release.name: {
            case.name: {
                SHARE: Interval.of(figures(measurements, release.name, case.name, "delay_share")),
                SECONDS: Interval.of(figures(measurements, release.name, case.name, "delay")),
            }
            for case in cases
        }
        for release in args.releases
    }
    report = script.Report(
        "gil_detection",
        measurements,
        tables=[(reports.GIL_BY_SIZE, measured, (SHARE, SECONDS))],
        verdicts=[verdict for release in args.releases for verdict in verdicts(measurements, release.name, sizes)],
        remarks=[f"On {args.devices[0]}."],
        models=facts,
        settings={"threads": args.own.threads},
    )
    return script.finish(report, args)


if __name__ == "__main__":
    sys.exit(main())
