"""Do the thread settings of ONNX Runtime's documentation do on this machine's CPU what it says?

Numbers of intra-op threads, spinning with its time and backoff, the parallel execution mode, affinities and NUMA nodes,
and a global pool for several sessions, each beside the default: a run's time, its processor time, and the threads that
are started and bound. Onnxruntime's own sessions; where a pool is global, ortmulti's on both sides.

    python -m benchmarks.thread_settings

Always on the CPU, whatever --devices says. Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.published import script, thread_cases
from benchmarks.published.thread_cases import (
    BOUND,
    DEFAULT,
    FREE,
    NO_SPINNING,
    ONE_NODE,
    ONE_POOL,
    OWN_POOLS,
    PARALLEL,
    SPIN_AND_BACKOFF,
    SPINNING,
    TWO_NODES,
)
from benchmarks.published.verdicts import Cell, Measurements, Verdict, figures, judge, outcome_of, ratios
from ortmulti._runtime.libraries import find_onnxruntime
from ortmulti.bench import models
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import Interval

SECONDS, QUICK_SECONDS = 1.0, 0.02
# By so much another setting may be faster in a round of measurements before the best one is not the best.
TOLERANCE = 1.02


def rows(measurements: Measurements, cases: Sequence[script.Case]) -> dict[str, dict[str, Cell]]:
    """The measured lines, by case."""
    return {
        case.name: {
            "run, ms": Interval.of(figures(measurements, case.name, "run", 1e3)),
            "run over default": Interval.of(
                ratios(measurements, case.name, f"{case.name.partition(':')[0]}: {DEFAULT}", "run")
            ),
            "processor time, ms": Interval.of(figures(measurements, case.name, "cpu", 1e3)),
            "runs a second": Interval.of(figures(measurements, case.name, "throughput")),
            "threads started": Interval.of(figures(measurements, case.name, "threads")),
        }
        for case in cases
    }


def default_threads(measurements: Measurements, model: str, cores: int) -> list[Verdict]:
    """On how many threads are started by default, and where they may run."""
    default, explicit = (f"{model}: {name}" for name in (DEFAULT, f"{cores} threads"))
    threads, bound = (figures(measurements, default, key) for key in ("threads", "bound"))
    others = figures(measurements, explicit, "bound")
    count = "threading: a thread for each physical core by default, the calling one included"
    where = "threading: these are bound to cores, those of an explicit number are not"
    if not threads or not others:
        return [Verdict(claim, "not measured", "it failed") for claim in (count, where)]
    as_many = all(one == cores - 1 for one in threads)
    as_said = bound == threads and not any(others)
    return [
        Verdict(count, "holds" if as_many else "does not hold",
                f"{threads[0]:g} threads started, {cores} physical cores"),
        Verdict(where, "holds" if as_said else "does not hold",
                f"by default {bound[0]:g} of {threads[0]:g} threads are bound, with an explicit number {others[0]:g}"),
    ]  # fmt: skip


def about_spinning(measurements: Measurements, names: Sequence[str]) -> list[Verdict]:
    """On spinning, and on the best of its settings."""
    found = []
    for model in names:
        default, without = f"{model}: {DEFAULT}", f"{model}: {NO_SPINNING}"
        time, cpu = (Interval.of(ratios(measurements, without, default, key)) for key in ("run", "cpu"))
        claim = f"threading: spinning makes inference faster and takes more processor time, {model}"
        if time is None or cpu is None:
            found.append(Verdict(claim, "not measured", "it failed"))
            continue
        holds, fails = time.low > 1 and cpu.high < 1, time.high <= 1 or cpu.low >= 1
        text = f"without it a run takes {time.median:.2f} times the time and {cpu.median:.2f} times the processor time"
        found.append(Verdict(claim, outcome_of(time, holds, fails), text))
    worst: list[float] = []
    for name in (DEFAULT, *SPINNING):
        if name != SPIN_AND_BACKOFF:
            for model in names:
                over = ratios(measurements, f"{model}: {SPIN_AND_BACKOFF}", f"{model}: {name}", "run")
                worst = [max(pair) for pair in zip(worst, over, strict=False)] if worst else over
    what = "its run over the fastest other setting's, in the worst model"
    claim = "threading: spinning for 1 ms with a backoff of 8 performs best across models"
    missing = "this release does not know the settings, or it failed"
    found.append(judge(claim, what, worst, at_most=TOLERANCE, missing=missing))
    return found


def others(measurements: Measurements, model: str, branches: str) -> list[Verdict]:
    """On the execution mode, affinities, NUMA nodes and global pools."""

    def over(numerator: str, denominator: str, of: str = model, key: str = "run") -> list[float]:
        return ratios(measurements, f"{of}: {numerator}", f"{of}: {denominator}", key)

    return [
        judge("threading: ORT_PARALLEL is usually faster with many branches", "its run over the sequential one's",
              over(PARALLEL, DEFAULT, branches), at_most=1.0),
        judge("threading: ORT_PARALLEL may hurt without branches", "its run over the sequential one's",
              over(PARALLEL, DEFAULT), at_least=1.0),
        judge("threading: no affinity is normally best", "a run without affinity over one with it",
              over(FREE, BOUND), at_most=TOLERANCE, missing="there is one core"),
        judge("threading: threads on one NUMA node are nearly 1.2x as fast as on two", "speedup over two nodes",
              over(TWO_NODES, ONE_NODE), at_least=1.1, missing="there are no two NUMA nodes with 8 processors each"),
        judge("threading: a global pool prevents contention of the sessions' own",
              "runs a second over those with pools of their own", over(ONE_POOL, OWN_POOLS, key="throughput"),
              at_least=1.0),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "")
    parser.add_argument("--seconds", type=float, help=f"of a measurement (default: {SECONDS:g})")
    args = script.parse(parser, arguments)
    seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    first = models.make("matmul", args.models, megabytes=4) if args.quick else models.make("resnet50", args.models)
    branches = thread_cases.write_branches(args.models)
    paths = [first, branches, *([] if args.quick else [models.make("tiny-kernels", args.models)])]
    spinning = 1 if args.quick else len(paths)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        cases = thread_cases.cases(paths, find_onnxruntime().version, Path(folder), seconds, spinning)
        measurements = script.measure(cases, args)
    cpu = machine.describe_cpu()
    verdicts = [
        *default_threads(measurements, first.stem, cpu["usable_physical_cores"]),
        *about_spinning(measurements, [path.stem for path in paths[:spinning]]),
        *others(measurements, first.stem, branches.stem),
    ]
    remark = f"On {cpu['usable_physical_cores']} cores, {cpu['numa_nodes']} NUMA node(s)."
    return script.finish("thread_settings", args, measurements, rows(measurements, cases), verdicts, remark, paths,
                         {"seconds": seconds})  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
