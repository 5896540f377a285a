"""What does one `run` cost beside onnxruntime's own, where the model itself costs next to nothing?

Both libraries run the same one-node models with small tensors in this process, in turns: a block of runs with one, then
a block with the other, and the order changes with every pair. Each pair gives one ratio (ours by theirs); the result is
their median and the upper end of its 95% confidence interval, from order statistics.

    python benchmarks/run_overhead.py --json overhead.json

Exit status 1 if the upper bound of any model is above --limit.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import ortmulti
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import alternating, measure_rounds, of_case, ratios

LIMIT = 1.05
Run = Callable[[None, dict[str, Any]], list[Any]]


def one_node(inputs: int, element_type: int, shape: Sequence[int]) -> bytes:
    """A model of one node that adds its inputs up, or copies strings."""
    names = [f"x{i}" for i in range(inputs)]
    op = "Identity" if element_type == TensorProto.STRING else "Sum"
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"])],
        "one node",
        [helper.make_tensor_value_info(name, element_type, list(shape)) for name in names],
        [helper.make_tensor_value_info("y", element_type, list(shape))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "one float32 input of 4 elements": (
        one_node(1, TensorProto.FLOAT, [1, 4]),
        {"x0": np.ones((1, 4), np.float32)},
    ),
    "four float32 inputs of 64 elements": (
        one_node(4, TensorProto.FLOAT, [1, 64]),
        {f"x{i}": np.full((1, 64), i, np.float32) for i in range(4)},
    ),
    "one string input of 4 elements": (
        one_node(1, TensorProto.STRING, [4]),
        {"x0": np.array(["a", "few", "short", "words"], object)},
    ),
}


def seconds(run: Run, feed: dict[str, Any], runs: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(runs):
        run(None, feed)
    return (time.perf_counter_ns() - start) / 1e9


def upper_bound(values: Sequence[float]) -> float:
    """The upper end of the 95% confidence interval of the median, which assumes no distribution."""
    ordered = sorted(values)
    # The count of values below the median is binomial; its normal approximation, rounded outwards.
    rank = math.ceil(len(ordered) / 2 + 1.96 * math.sqrt(len(ordered)) / 2)
    return ordered[min(rank, len(ordered) - 1)]


def measure(model: bytes, feed: dict[str, Any], pairs: int, runs: int) -> dict[str, float]:
    """Times `pairs` pairs of blocks of `runs` runs each.

    Returns:
        ratio (median), upper_bound, and the median times of one run in microseconds.
    """
    their_options, our_options = onnxruntime.SessionOptions(), ortmulti.SessionOptions()
    their_options.intra_op_num_threads = our_options.intra_op_num_threads = 1
    cpu = ["CPUExecutionProvider"]
    theirs: Run = onnxruntime.InferenceSession(model, their_options, providers=cpu).run
    ours: Run = ortmulti.InferenceSession(model, our_options, providers=cpu).run
    if ours(None, feed)[0].tolist() != theirs(None, feed)[0].tolist():
        raise AssertionError("the two libraries give different results")
    for run in (theirs, ours):
        seconds(run, feed, 10 * runs)
    libraries = {"onnxruntime": theirs, "ours": ours}
    gc.collect()
    gc.disable()
    try:
        rounds = measure_rounds(
            [*libraries], lambda name, _: seconds(libraries[name], feed, runs), pairs, order=alternating
        )
    finally:
        gc.enable()
    over = ratios(rounds, "ours", "onnxruntime", float)
    return {
        "ratio": statistics.median(over),
        "upper_bound": upper_bound(over),
        **{f"{name}_us": statistics.median(of_case(rounds, name)) / runs * 1e6 for name in libraries},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400, help="pairs of blocks for each model (default: 400)")
    parser.add_argument("--runs", type=int, default=250, help="runs in a block (default: 250)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"highest upper bound (default: {LIMIT})")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    results = {}
    for name, (model, feed) in CASES.items():
        results[name] = result = measure(model, feed, args.pairs, args.runs)
        print(
            f"{name}: {result['ours_us']:.2f} us a run, onnxruntime {onnxruntime.__version__} "
            f"{result['onnxruntime_us']:.2f} us; ratio {result['ratio']:.3f}, "
            f"upper 95% bound {result['upper_bound']:.3f}"
        )
    if args.json:
        report = {
            "pairs": args.pairs,
            "runs": args.runs,
            "onnxruntime": onnxruntime.__version__,
            "limit": args.limit,
            "models": results,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(result["upper_bound"] > args.limit for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
