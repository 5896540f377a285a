"""Does ONNX Runtime hold the GIL while it creates a session, and for longer the larger the model is?

`ortmulti bench gil` for models of several sizes, with onnxruntime's sessions and ortmulti's: a heartbeat thread sleeps
for a millisecond, again and again, beside the creation of a session. How late its beats are is how long Python threads
stand still.

    python -m benchmarks.gil_detection --devices cpu

Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.published import script
from benchmarks.published.verdicts import Verdict, figures, judge
from ortmulti.bench import models
from ortmulti.bench.measure import gil
from ortmulti.bench.measure.rounds import Interval

SIZES, QUICK_SIZES = (64, 256, 1024), (4, 16)
HELD_SHARE = 0.5


def case_name(library: str, megabytes: int) -> str:
    return f"{library}, {megabytes} MB"


def judged(measurements: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> list[Verdict]:
    """On whether the GIL is held, and for longer with a larger model."""
    smallest, largest = (case_name("onnxruntime", size) for size in (min(sizes), max(sizes)))
    shares = figures(measurements, largest, "delay_share")
    short, long = (figures(measurements, case, "delay") for case in (smallest, largest))
    # Where it is not held the delays are the machine's, and nothing grows.
    grown = [
        b / max(a, gil.BEAT_SECONDS) if share >= HELD_SHARE else 0.0
        for a, b, share in zip(short, long, shares, strict=False)
    ]
    what = f"the {max(sizes)} MB model's delay over the {min(sizes)} MB model's (0: it is not held)"
    return [
        judge("report: creating an InferenceSession holds the GIL", "share of the creation for which other Python "
              "threads stand still", shares, at_least=HELD_SHARE),
        judge("report: the larger the model, the longer", what, grown, at_least=2.0),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "")
    parser.add_argument("--threads", type=int, default=0, help="of each session (default: 0, ONNX Runtime's default)")
    args = script.parse(parser, arguments)
    sizes = QUICK_SIZES if args.quick else SIZES
    paths = {size: models.make("matmul", args.models, megabytes=size) for size in sizes}
    cases = [
        script.Case(
            case_name(library, size),
            "ortmulti.bench.measure.gil",
            {"library": library, "model": str(path), "device": args.devices[0], "threads": args.threads},
            script.files_of(path),
            # Both libraries are read from the disk by the first of their cases.
            prepare=args.repeat > 1 and size == sizes[0],
        )
        for size, path in paths.items()
        for library in gil.LIBRARIES
    ]
    measurements = script.measure(cases, args)
    rows = {
        case.name: {
            "others stand still, share": Interval.of(figures(measurements, case.name, "delay_share")),
            "others stand still, s": Interval.of(figures(measurements, case.name, "delay")),
        }
        for case in cases
    }
    return script.finish("gil_detection", args, measurements, rows, judged(measurements, sizes),
                         f"On {args.devices[0]}.", [*paths.values()], {"threads": args.threads})  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
