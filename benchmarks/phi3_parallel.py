"""How fast do sessions of a large model, a decoder of Phi-3-mini's shape, become ready on several GPUs: one after the
other, by Python threads, by processes, and by ortmulti?

The report's test with 7.2 GB on four devices, here with 7.64 GB of random weights, with every strategy of
`ortmulti bench create` and with several releases in turns. Without GPUs it is three of 32 layers, on two sessions on
the CPU.

    python benchmarks/phi3_parallel.py --devices 0,1,2,3 --releases 1.30.0,1.31.1
    python benchmarks/phi3_parallel.py --from create-1.30.0.json create-1.31.1.json

Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.published import creation, reports, script
from ortmulti.bench import models

LAYERS, LAYERS_ON_CPU, QUICK_MEGABYTES = 32, 3, 64


def make(args: script.Arguments) -> Path:
    if args.quick:
        return models.make("matmul", args.models, megabytes=QUICK_MEGABYTES)
    layers = args.own.layers or (LAYERS if args.on_gpus else LAYERS_ON_CPU)
    return models.make("phi3-mini", args.models, layers=layers)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "")
    parser.add_argument("--layers", type=int, help=f"of the model (default: {LAYERS}, on the CPU {LAYERS_ON_CPU})")
    return creation.main("phi3_parallel", reports.LARGE_MODEL, parser, arguments, make)


if __name__ == "__main__":
    sys.exit(main())
