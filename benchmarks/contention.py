"""Do pools, and onnxruntime in threads, keep their rate on many GPUs when a model consists of kernels of microseconds?

`ortmulti bench run` with tiny-kernels, 400 kernels a run, on 1, 2, 4, ... N devices: the time of such a run is that of
launching them, for which all threads of a process go through the same locks of the driver. Without CUDA graphs each
variant; with them the core's, which launches one graph instead.

    python -m benchmarks.contention --json contention.json
    python -m benchmarks.contention --from contention.json

It is what a thread in NVIDIA's forum asks: whether its claims hold is printed, too.

Exit status 1 if a measurement failed; if with graphs N devices answer less than --least-scaling times N times what one
does; or if without graphs another variant answers more on all devices than the core, beyond the confidence interval.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.published.verdicts import Verdict, judge, show
from ortmulti.bench import models, serve
from ortmulti.bench.measure import results
from ortmulti.bench.measure.devices import describe, device_sets, parse_counts, parse_devices
from ortmulti.bench.serve.plan import REPORT

LEAST_SCALING = 0.90
GRAPH = "core+graph"
VARIANTS = ("core", "threads", "processes")


def missed(document: Mapping[str, Any], least_scaling: float) -> list[str]:
    """What is not as it should be, a text each."""
    texts = serve.RunPlan.failures(document)
    most = max(len(row["devices"]) for row in document["rows"])
    for row in document["rows"]:
        if len(row["devices"]) < most or not row["measured"]:
            continue
        where = f"{row['variant']} on {describe(row['devices'])}"
        scaling, ratio = row["scaling"], row["over_first"]
        if row["variant"] == GRAPH and scaling is not None and scaling["median"] < least_scaling:
            texts.append(f"{where} scales to {scaling['median']:.3f}, less than {least_scaling:g}")
        if row["variant"] in VARIANTS and ratio is not None and ratio["low"] > 1:
            texts.append(f"{where} answers {ratio['median']:.3f} times what the first variant does")
    return texts


def judged(document: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on the forum's claims.

    A run's time is N devices over the answers a second: with requests always waiting, that is how long a device takes
    for one.
    """
    most = max(len(row["devices"]) for row in document["rows"])
    on_gpus = all(device != "cpu" for row in document["rows"] for device in row["devices"])
    missing = "it takes two GPUs" if most < 2 or not on_gpus else "that variant was not measured"
    verdicts = []
    for variant in (*VARIANTS, GRAPH):
        alone, together = (_run_times(document, variant, count) for count in (1, most))
        slowdowns = [together[number] / alone[number] for number in together if number in alone]
        if variant == "processes":
            claim, bound = "processes do not slow each other down", {"at_most": 1.1}
        else:
            claim, bound = "threads of one process slow each other down (3.6x on 10 GPUs)", {"at_least": 1.5}
        values = slowdowns if on_gpus and most > 1 else []
        what = "a run takes, times one GPU's,"
        verdicts.append(judge(f"forum: {claim}, {variant}", what, values, missing=missing, **bound))
    return verdicts


def _run_times(document: Mapping[str, Any], variant: str, devices: int) -> dict[int, float]:
    """Seconds a run on each of so many devices, by round."""
    return {
        one["round"]: devices / one["throughput"]
        for one in document["measurements"]
        if one["variant"] == variant and len(one["devices"]) == devices and one.get("throughput")
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="all", help="as `ortmulti bench run` takes them (default: all)")
    parser.add_argument("--counts", help="numbers of devices, such as 1,8 (default: 1, 2, 4, ... and all)")
    parser.add_argument("--variants", help="default: core, threads, processes and, on GPUs, core+graph")
    parser.add_argument("--repeat", type=int, help="rounds (default: 6, with --quick 1)")
    parser.add_argument("--seconds", type=float, help="of a measurement (default: 2, with --quick 0.1)")
    parser.add_argument("--quick", action="store_true", help="one short round: whether everything works")
    parser.add_argument("--in-flight", type=int, default=4, help="requests for each session (default: 4)")
    parser.add_argument("--budget", type=float, help="seconds for all rounds (default: any number)")
    parser.add_argument("--models", type=Path, default=Path("models"), help="the model's folder (default: models)")
    parser.add_argument("--least-scaling", type=float, default=LEAST_SCALING, help=f"default: {LEAST_SCALING}")
    parser.add_argument("--from", type=Path, dest="result", help="show this result instead of measuring")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    document = results.load(args.result) if args.result else measure(args)
    return show(document, REPORT.markdown(document), judged(document), missed(document, args.least_scaling), args.json)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The result, of kind "run"."""
    available = parse_devices(args.devices)
    on_gpus = "cpu" not in available
    names = args.variants or ",".join([*VARIANTS, *([GRAPH] if on_gpus else [])])
    counts = parse_counts(args.counts) if args.counts else serve.doubling(len(available))
    plan = serve.RunPlan(
        models=[models.make("tiny-kernels", args.models)],
        device_sets=device_sets(available, counts),
        variants=names.split(","),
        in_flight=args.in_flight,
        repeat=args.repeat or (1 if args.quick else 6),
        seconds=args.seconds or (0.1 if args.quick else 2.0),
        budget=args.budget,
    )
    document = plan.run()
    document["command"][0] = "benchmarks/contention.py"
    return document


if __name__ == "__main__":
    sys.exit(main())
