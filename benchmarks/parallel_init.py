"""How fast do sessions of a small model, ResNet-50, become ready on several GPUs: one after the other, by Python
threads, by processes, and by ortmulti?

The report's test on four devices, with every strategy of `ortmulti bench create` and with several releases in turns.
Without GPUs it is two sessions on the CPU.

    python benchmarks/parallel_init.py --devices 0,1,2,3 --releases 1.30.0,1.31.1
    python benchmarks/parallel_init.py --from create-1.30.0.json create-1.31.1.json

Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.published import creation, reports, script
from ortmulti.bench import models


def make(args: script.Arguments) -> Path:
    return models.make("matmul", args.models, megabytes=16) if args.quick else models.make("resnet50", args.models)


def main(arguments: Sequence[str] | None = None) -> int:
    return creation.main("parallel_init", reports.SMALL_MODEL, script.parser(__doc__ or ""), arguments, make)


if __name__ == "__main__":
    sys.exit(main())
