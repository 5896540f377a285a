"""How long do `import ortmulti` and the attribute `ortmulti.load` take beyond `import numpy`?

Fresh processes, in turns: one imports NumPy, the other also imports ortmulti and takes `load` from it. The order
changes with every pair. Measured from the start of the process to its end. Each pair gives one difference; the result
is their median. The processor's time is reported beside it: if it is much smaller, other programs were in the way.

    python benchmarks/import_time.py --json import.json

Exit status 1 if the median is above --limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortmulti import __version__
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import alternating, measure_rounds, of_case

LIMIT = 15.0
CASES = {"numpy": "import numpy", "numpy, ortmulti.load": "import numpy, ortmulti; ortmulti.load"}
COUNT = "import numpy, sys; less = len(sys.modules); import ortmulti; ortmulti.load; print(len(sys.modules) - less)"


def milliseconds(code: str) -> tuple[float, float]:
    """The time that an interpreter takes to start, run `code` and end: by the clock, and of the processor."""
    start = time.perf_counter_ns()
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    _, status, usage = os.wait4(child, 0)
    elapsed = (time.perf_counter_ns() - start) / 1e6
    if status:
        raise RuntimeError(f"{code!r} failed: {os.waitstatus_to_exitcode(status)}")
    return elapsed, (usage.ru_utime + usage.ru_stime) * 1e3


def measure(pairs: int) -> dict[str, list[tuple[float, float]]]:
    """Times `pairs` processes of each case, after one that counts for nothing: it reads the files from the disk.

    Returns:
        For each case its times in milliseconds as `milliseconds` gives them, those of a pair at the same place.
    """
    rounds = measure_rounds([*CASES], lambda name, _: milliseconds(CASES[name]), pairs + 1, order=alternating)
    return {name: of_case(rounds[1:], name) for name in CASES}


def summarize(times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Medians of each case, and of what the second takes more: by the clock, with quartiles, and of the processor."""
    less, more = times.values()
    by_clock, of_processor = ([b[i] - a[i] for a, b in zip(less, more, strict=True)] for i in (0, 1))
    low, _, high = statistics.quantiles(by_clock, n=4) if len(by_clock) > 1 else by_clock * 3
    return {
        "ms": {name: statistics.median(elapsed for elapsed, _ in values) for name, values in times.items()},
        "difference_ms": statistics.median(by_clock),
        "difference_quartiles_ms": [low, high],
        "difference_processor_ms": statistics.median(of_processor),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=25, help="pairs of processes (default: 25)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help=f"highest median, in milliseconds (default: {LIMIT:g})"
    )
    parser.add_argument("--json", "--out", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    times = measure(args.pairs)
    summary = summarize(times)
    low, high = summary["difference_quartiles_ms"]
    modules = int(subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True).stdout)
    print(
        "; ".join(f"import {name}: {elapsed:.1f} ms" for name, elapsed in summary["ms"].items())
        + f"; difference {summary['difference_ms']:.1f} ms (quartiles {low:.1f} and {high:.1f}, {args.pairs} pairs), "
        f"of the processor {summary['difference_processor_ms']:.1f} ms; {modules} modules"
    )
    if args.json:
        report = {
            "pairs": args.pairs,
            "limit_ms": args.limit,
            "modules": modules,
            "ortmulti": __version__,
            "summary": summary,
            "times_ms": times,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(summary["difference_ms"] > args.limit)


if __name__ == "__main__":
    sys.exit(main())
