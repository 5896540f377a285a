"""Do the thread settings of ONNX Runtime's documentation do on this machine's CPU what it says?

Numbers of intra-op threads, spinning with its time and backoff, the parallel execution mode, affinities and NUMA nodes,
and a global pool for several sessions, each beside the default: a run's time, its processor time, and the threads that
are started and bound. Onnxruntime's own sessions; where a pool is global, ortmulti's on both sides.

    python benchmarks/thread_settings.py --releases 1.21.1,1.31.1

Always on the CPU, whatever --devices says. Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import claims, releases, reports, script, thread_cases
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
from benchmarks.published.verdicts import Verdict, figures, judge, outcome_of, ratios
from ortmulti.bench import models
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import Interval

SECONDS, QUICK_SECONDS = 1.0, 0.02
# By so much another setting may be faster in a round of measurements before the best one is not the best.
TOLERANCE = 1.02

Measurements = Sequence[dict[str, Any]]


def rows(measurements: Measurements, release: str, cases: Sequence[releases.Case]) -> dict[str, dict[str, Any]]:
    """The measured lines, by case."""
    found = {}
    for case in cases:
        base = f"{case.name.partition(':')[0]}: {DEFAULT}"
        found[case.name] = {
            "run, ms": scaled(figures(measurements, release, case.name, "run")),
            "processor time, ms": scaled(figures(measurements, release, case.name, "cpu")),
            "runs a second": Interval.of(figures(measurements, release, case.name, "throughput")),
            "run over default": Interval.of(ratios(measurements, release, case.name, base, "run")),
            "threads started": Interval.of(figures(measurements, release, case.name, "threads")),
        }
    return found


def scaled(values: Sequence[float]) -> Interval | None:
    return Interval.of(1e3 * value for value in values)


def default_threads(measurements: Measurements, release: str, model: str, cores: int) -> list[Verdict]:
    """On how many threads are started by default, and where they may run."""
    default, explicit = (f"{model}: {name}" for name in (DEFAULT, f"{cores} threads"))
    threads = figures(measurements, release, default, "threads")
    bound = figures(measurements, release, default, "bound")
    others = figures(measurements, release, explicit, "bound")
    if not threads or not others:
        both = (claims.THREADS_PER_CORE, claims.DEFAULT_IS_BOUND)
        return [Verdict(claim, release, "not measured", "it failed") for claim in both]
    as_many = all(count == cores - 1 for count in threads)
    as_said = bound == threads and not any(others)
    return [
        Verdict(claims.THREADS_PER_CORE, release, "holds" if as_many else "does not hold",
                f"{threads[0]:g} threads started, {cores} physical cores"),
        Verdict(claims.DEFAULT_IS_BOUND, release, "holds" if as_said else "does not hold",
                f"by default {bound[0]:g} of {threads[0]:g} threads are bound, with an explicit number {others[0]:g}"),
    ]  # fmt: skip


def about_spinning(measurements: Measurements, release: str, names: Sequence[str], why_not: str) -> list[Verdict]:
    """On spinning, and on the best of its settings."""
    found = []
    for model in names:
        default, without = f"{model}: {DEFAULT}", f"{model}: {NO_SPINNING}"
        time = Interval.of(ratios(measurements, release, without, default, "run"))
        cpu = Interval.of(ratios(measurements, release, without, default, "cpu"))
        claim, where = claims.SPINNING, f"{release}, {model}"
        if time is None or cpu is None:
            found.append(Verdict(claim, where, "not measured", "it failed"))
            continue
        holds, fails = time.low > 1 and cpu.high < 1, time.high <= 1 or cpu.low >= 1
        text = f"without it a run takes {time.median:.2f} times the time and {cpu.median:.2f} times the processor time"
        found.append(Verdict(claim, where, outcome_of(time, holds, fails), text))
    worst: list[float] = []
    for name in (DEFAULT, *SPINNING):
        if name != SPIN_AND_BACKOFF:
            for model in names:
                over = ratios(measurements, release, f"{model}: {SPIN_AND_BACKOFF}", f"{model}: {name}", "run")
                worst = [max(pair) for pair in zip(worst, over, strict=False)] if worst else over
    what = "its run over the fastest other setting's, in the worst model"
    found.append(judge(claims.SPIN_BACKOFF, release, what, worst, at_most=TOLERANCE, missing=why_not or "it failed"))
    return found


def others(measurements: Measurements, release: str, model: str, branches: str) -> list[Verdict]:
    """On the execution mode, affinities, NUMA nodes and global pools."""

    def over(numerator: str, denominator: str, of: str = model, key: str = "run") -> list[float]:
        return ratios(measurements, release, f"{of}: {numerator}", f"{of}: {denominator}", key)

    return [
        judge(claims.PARALLEL_BRANCHES, release, "its run over the sequential one's",
              over(PARALLEL, DEFAULT, branches), at_most=1.0, missing="it failed"),
        judge(claims.PARALLEL_CHAIN, release, "its run over the sequential one's",
              over(PARALLEL, DEFAULT), at_least=1.0, missing="it failed"),
        judge(claims.AFFINITY, release, "a run without affinity over one with it",
              over(FREE, BOUND), at_most=TOLERANCE, missing="there is one core"),
        judge(claims.ONE_NODE, release, "speedup over two nodes",
              over(TWO_NODES, ONE_NODE), at_least=1.1, missing="there are no two NUMA nodes with 8 processors each"),
        judge(claims.GLOBAL_POOL, release, "runs a second over those with pools of their own",
              over(ONE_POOL, OWN_POOLS, key="throughput"), at_least=1.0, missing="it failed"),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "")
    parser.add_argument("--seconds", type=float, help=f"of a measurement (default: {SECONDS:g})")
    args = script.parse(parser, arguments)
    seconds = args.own.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    first = models.make("matmul", args.models, megabytes=4) if args.quick else models.make("resnet50", args.models)
    branches = thread_cases.write_branches(args.models)
    paths = [first, branches, *([] if args.quick else [models.make("tiny-kernels", args.models)])]
    spinning = 1 if args.quick else len(paths)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        cases = thread_cases.cases(paths, args.releases, Path(folder), seconds, spinning)
        measurements = releases.measure(
            cases, args.releases, args.repeat, timeout=args.timeout, budget=args.budget, tell=args.tell
        )
    cpu = machine.describe_cpu()
    measured = {release.name: rows(measurements, release.name, cases) for release in args.releases}
    columns = ("run, ms", "run over default", "processor time, ms", "runs a second", "threads started")
    nodes = {
        release.name: {
            name: {"speedup": Interval.of(ratios(measurements, release.name, f"{first.stem}: {TWO_NODES}",
                                                 f"{first.stem}: {name}", "run"))}
            for name in (ONE_NODE, TWO_NODES)
        }
        for release in args.releases
    }  # fmt: skip
    report = script.Report(
        "thread_settings",
        measurements,
        tables=[(reports.SETTINGS, measured, columns), (reports.NUMA, nodes, ())],
        remarks=[f"On {cpu['usable_physical_cores']} cores, {cpu['numa_nodes']} NUMA node(s)."],
        models=[script.model_facts(path) for path in paths],
        settings={"seconds": seconds},
    )
    for release in args.releases:
        why_not = next((why for case in cases for name, why in case.refused.items() if name == release.name), "")
        report.verdicts += [
            *default_threads(measurements, release.name, first.stem, cpu["usable_physical_cores"]),
            *about_spinning(measurements, release.name, [path.stem for path in paths[:spinning]], why_not),
            *others(measurements, release.name, first.stem, branches.stem),
        ]
    return script.finish(report, args)


if __name__ == "__main__":
    sys.exit(main())
