"""Is ResNet-50 as fast in ortmulti as in PyTorch, at equal precision and batch, from host arrays and on the device?

`ortmulti bench run --torch` at every setting, or at some: fp32 without TF32, with it, and fp16; batch 1 and 32; NumPy
arrays in and out, and values that lie on the device. Both sides have all of their ways (PyTorch: eager, channels_last,
as a CUDA graph, torch.compile, cuDNN's algorithms searched; ortmulti: a pool and a bound session, NHWC, CUDA graphs),
in turns in one process a setting. The ratio is of the fastest of each, within the rounds.

    python -m benchmarks.torch_compare --json torch.json
    python -m benchmarks.torch_compare --from torch.json

Whether an article's claims about the same network hold is printed, too.

Exit status 1 if a setting failed or is left out, an output is not PyTorch's, or a ratio is above --most-ratio.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pytorch
from benchmarks.published.verdicts import Outcome, Verdict, judge, show
from benchmarks.pytorch.comparison import REPORT
from ortmulti.bench.measure import results
from ortmulti.bench.measure.devices import parse_devices

MOST_RATIO = 1.03
QUICK_ROUNDS = 2


def missed(document: Mapping[str, Any], most_ratio: float) -> list[str]:
    """What is not as it should be, a text each."""
    slower = [
        f"{row['setting']}: ortmulti takes {row['ratio']['median']:.3f} times PyTorch's time"
        for row in document["rows"]
        if row["ratio"] is not None and row["ratio"]["median"] > most_ratio
    ]
    return [*pytorch.failures(document), *slower]


def judged(document: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on the article's claims, in fp32 with batch 1."""
    good = [
        (one["setting"], way)
        for one in document["measurements"]
        for way in one["ways"]
        if "error" not in way and way["equal"]
    ]
    verdicts = []
    for place in ("host", "device"):
        setting = f"fp32, batch 1, {place}"
        seconds = {(way["side"], way["name"]): way["seconds"] for where, way in good if where == setting}
        ours = seconds.get(("ortmulti", "pool" if place == "host" else "bound"), [])
        # As PyTorch is by default; where that was not measured, with algorithms searched.
        theirs = seconds.get(("pytorch", "eager, no cudnn.benchmark"), seconds.get(("pytorch", "eager"), []))
        pairs = [mine / other for mine, other in zip(ours, theirs, strict=False)]
        claim = f"article: ONNX Runtime's defaults are slower than PyTorch's (0.75x), {place}"
        missing = "that setting was not measured"
        verdicts.append(judge(claim, "the default's time over PyTorch's", pairs, at_least=1.0, missing=missing))
        row = next((row for row in document["rows"] if row["setting"] == setting), None)
        verdicts.append(_tuned(place, None if row is None else row["ratio"]))
    graphs = {f"'{way['name']}'" for _, way in good if way["side"] == "ortmulti" and "graph" in way["name"]}
    outcome: Outcome = "does not hold" if graphs else "not measured"
    because = f"{', '.join(sorted(graphs))} gave PyTorch's outputs" if graphs else "no way with a CUDA graph worked"
    return [*verdicts, Verdict("article: CUDA graphs are not directly possible in ONNX Runtime", outcome, because)]


def _tuned(place: str, ratio: Mapping[str, float] | None) -> Verdict:
    """On the fastest way of each side, by the ratio that the comparison has made within its rounds."""
    claim = f"article: tuning does not quite reach PyTorch, {place}"
    if ratio is None:
        return Verdict(claim, "not measured", "that setting was not measured")
    outcome: Outcome = "holds" if ratio["low"] > 1 else "does not hold" if ratio["high"] <= 1 else "undecided"
    text = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
    return Verdict(claim, outcome, f"the fastest way's time over PyTorch's fastest {text}")


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", "--devices", default="all", help="one device (default: the first)")
    parser.add_argument("--precisions", type=names, help="some of fp32, tf32, fp16 (default: all; on the CPU fp32)")
    parser.add_argument("--batches", type=lambda text: tuple(map(int, text.split(","))), default=(1, 32))
    parser.add_argument("--places", type=names, default=pytorch.PLACES, help="some of host, device (default: both)")
    parser.add_argument("--compile", type=names, default=("default", "reduce-overhead"), help="torch.compile's modes")
    parser.add_argument("--rounds", type=int, help=f"default: {pytorch.ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--block-seconds", type=float, help="of each way in a round (default: 0.2, with --quick 0.02)")
    parser.add_argument("--quick", action="store_true", help="few short rounds: whether everything works")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for a setting (default: 600)")
    parser.add_argument("--budget", type=float, help="seconds for all settings (default: any number)")
    parser.add_argument("--models", type=Path, default=Path("models"), help="the models' folder (default: models)")
    parser.add_argument("--most-ratio", type=float, default=MOST_RATIO, help=f"default: {MOST_RATIO}")
    parser.add_argument("--from", type=Path, dest="result", help="show this result instead of measuring")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    document = results.load(args.result) if args.result else measure(args)
    return show(document, REPORT.markdown(document), judged(document), missed(document, args.most_ratio), args.json)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The result, of kind "torch"."""
    device = parse_devices(args.device)[0]
    plan = pytorch.TorchPlan(
        device,
        precisions=args.precisions or (("fp32",) if device == "cpu" else pytorch.PRECISIONS),
        batches=args.batches,
        places=args.places,
        compile_modes=args.compile,
        rounds=args.rounds or (QUICK_ROUNDS if args.quick else pytorch.ROUNDS),
        block_seconds=args.block_seconds or (0.02 if args.quick else 0.2),
        timeout=args.timeout,
        budget=args.budget,
    )
    document = pytorch.bench(plan, args.models, lambda _done, _total, text: print(text, file=sys.stderr))
    document["command"][0] = "benchmarks/torch_compare.py"
    return document


if __name__ == "__main__":
    sys.exit(main())
