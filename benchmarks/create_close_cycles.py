"""Does memory grow when sessions are created, run and closed over and over?

Each library does its cycles in a process of its own; the resident memory after the first --warm cycles is compared with
that after the last.

    python benchmarks/create_close_cycles.py --json cycles.json

Exit status 1 if ours grows by more than onnxruntime's does plus --allowance.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortmulti.bench import models
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import alternating, measure_rounds, of_case

LIBRARIES = ("ortmulti", "onnxruntime")
MEGABYTE = 10**6
ALLOWANCE_MB = 2.0


def resident() -> int:
    """Bytes of memory that this process has in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cycle(library: str, path: str, device: str, cycles: int) -> list[int]:
    """Creates, runs and closes a session `cycles` times; the resident memory after each."""
    provider: list[Any] = ["CPUExecutionProvider"]
    if device != "cpu":
        provider = [("CUDAExecutionProvider", {"device_id": device.removeprefix("cuda:")})]
    feed = models.sample_inputs(path)
    memory = []
    for _ in range(cycles):
        if library == "ortmulti":
            import ortmulti

            with ortmulti.InferenceSession(path, providers=provider) as session:
                session.run(None, feed)
        else:
            import onnxruntime

            theirs = onnxruntime.InferenceSession(path, providers=provider)
            theirs.run(None, feed)
            del theirs
        gc.collect()
        memory.append(resident())
    return memory


def growth(library: str, path: Path, device: str, cycles: int, warm: int) -> dict[str, float]:
    """One process's cycles.

    Returns:
        Its resident memory after `warm` cycles and at the end, and the difference, in MB.
    """
    arguments = ["--child", library, "--model", str(path), "--device", device, "--cycles", str(cycles)]
    child = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True)
    memory = json.loads(child.stdout)
    return {
        "warm_mb": memory[warm - 1] / MEGABYTE,
        "end_mb": memory[-1] / MEGABYTE,
        "growth_mb": (memory[-1] - memory[warm - 1]) / MEGABYTE,
    }


def compare(device: str = "cpu", cycles: int = 200, warm: int = 50, repeat: int = 3) -> dict[str, Any]:
    """Measures each library `repeat` times, in turns.

    Returns:
        For each library its measurements and their median growth in MB; and excess_mb: ours less onnxruntime's.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = models.make("matmul", folder, megabytes=4)
        rounds = measure_rounds(
            LIBRARIES, lambda library, _: growth(library, path, device, cycles, warm), repeat, order=alternating
        )
    measured = {library: of_case(rounds, library) for library in LIBRARIES}
    medians = {
        library: statistics.median(result["growth_mb"] for result in results) for library, results in measured.items()
    }
    return {
        "device": device,
        "cycles": cycles,
        "warm": warm,
        "measured": measured,
        "growth_mb": medians,
        "excess_mb": medians["ortmulti"] - medians["onnxruntime"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--warm", type=int, default=50, help="cycles before the first reading (default: 50)")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each library (default: 3)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default: cpu)")
    parser.add_argument("--allowance", type=float, default=ALLOWANCE_MB, help=f"MB (default: {ALLOWANCE_MB})")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--child", choices=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        print(json.dumps(cycle(args.child, args.model, args.device, args.cycles)))
        return 0
    result = compare(args.device, args.cycles, args.warm, args.repeat)
    for library, runs in result["measured"].items():
        readings = ", ".join(f"{run['warm_mb']:.1f} -> {run['end_mb']:.1f}" for run in runs)
        print(f"{library}: MB after {args.warm} and {args.cycles} cycles: {readings}; ", end="")
        print(f"median growth {result['growth_mb'][library]:.2f} MB")
    if args.json:
        args.json.write_text(json.dumps({**result, "machine": machine.describe()}, indent=1) + "\n", encoding="utf-8")
    return int(result["excess_mb"] > args.allowance)


if __name__ == "__main__":
    sys.exit(main())
