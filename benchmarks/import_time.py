"""How long does `import ortmulti` take beyond `import numpy`?

Fresh processes, in turns: one that imports NumPy, one that imports NumPy and ortmulti, and the order changes with every
pair. Measured from the start of the process to its end. Each pair gives one difference; the result is their median.

    python benchmarks/import_time.py --json import.json

Exit status 1 if the median is above --limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ortmulti import __version__, machine

LIMIT = 50.0
CASES = {"numpy": "import numpy", "numpy, ortmulti": "import numpy, ortmulti"}


def milliseconds(code: str) -> float:
    """The time that an interpreter takes to start, run `code` and end."""
    start = time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter_ns() - start) / 1e6


def measure(pairs: int) -> dict[str, list[float]]:
    """Times `pairs` processes of each case, after one that counts for nothing: it reads the files from the disk.

    Returns:
        For each case its times in milliseconds, those of a pair at the same place.
    """
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for pair in range(-1, pairs):
        for name in sorted(CASES, reverse=bool(pair % 2)):
            elapsed = milliseconds(CASES[name])
            if pair >= 0:
                times[name].append(elapsed)
    return times


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of processes (default: 40)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help=f"highest median, in milliseconds (default: {LIMIT:g})"
    )
    parser.add_argument("--json", "--out", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    times = measure(args.pairs)
    alone, both = times.values()
    differences = [more - less for more, less in zip(both, alone, strict=True)]
    result = {name: statistics.median(values) for name, values in times.items()}
    difference = statistics.median(differences)
    low, _, high = statistics.quantiles(differences, n=4) if len(differences) > 1 else (difference,) * 3
    print(
        f"import numpy: {result['numpy']:.1f} ms; import numpy, ortmulti: {result['numpy, ortmulti']:.1f} ms; "
        f"difference {difference:.1f} ms (quartiles {low:.1f} and {high:.1f}, {args.pairs} pairs)"
    )
    if args.json:
        report = {
            "pairs": args.pairs,
            "limit_ms": args.limit,
            "ortmulti": __version__,
            "medians_ms": result,
            "difference_ms": {"median": difference, "quartiles": [low, high]},
            "times_ms": times,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(difference > args.limit)


if __name__ == "__main__":
    sys.exit(main())
