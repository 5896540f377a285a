"""Does `tune` find what the exhaustive grid finds, and in which part of its time?

For each objective a model for which settings matter on the CPU:

- latency: 8 branches of 12 small matrix products each, which may run at the same time.
- throughput: a chain of 400 kernels of microseconds.
- creation: a chain of 3000 additions of different constants, which optimization looks at again and again.
- memory: 64 MB that are needed for a moment.

`tune` searches, and then the grid of the same settings (--settings; otherwise those below) is measured, every
configuration as often as those that stay in the search to the end. At last the two bests are measured in turns; the
result is the median of the ratios with its confidence interval. One is the other: 1 by definition.

    python benchmarks/tuning.py --for memory --json tuning.json

Exit status 1 if the ratio's interval lies above 1 + --most-loss, or the search took more than --most-time of the grid's
time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti.bench import models
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import Interval, alternating, measure_rounds, ratios
from ortmulti.bench.tune.measurements import Bench, Job
from ortmulti.bench.tune.space import DEFAULTS, Choice, Configuration, describe

_SETTINGS = {
    "latency": ["graph_optimization_level", "threads", "spinning", "enable_mem_pattern", "enable_cpu_mem_arena"],
    "throughput": [
        "threads",
        "spinning",
        "thread_affinity",
        "global_thread_pools",
        "enable_mem_pattern",
        "enable_cpu_mem_arena",
    ],
    "creation": [
        "graph_optimization_level",
        "prepacking",
        "use_device_allocator_for_initializers",
        "threads",
        "enable_mem_pattern",
        "enable_cpu_mem_arena",
    ],
    "memory": [
        "graph_optimization_level",
        "prepacking",
        "use_device_allocator_for_initializers",
        "threads",
        "global_thread_pools",
        "enable_mem_pattern",
        "enable_cpu_mem_arena",
    ],
}
_PAIRS = 15
_BLOCK_SECONDS = {"latency": 0.05, "throughput": 0.15}


def _save(
    nodes: list[Any], initializers: list[Any], shapes: tuple[list[int], list[int] | None], path: Path, opset: int = 17
) -> Path:
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in zip("xy", shapes, strict=True)
    )
    graph = helper.make_graph(nodes, path.stem, [x], [y], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def _branches(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    nodes, weights, ends = [], [], []
    for branch in range(8):
        value = "x"
        for layer in range(12):
            name = f"b{branch}l{layer}"
            matrix = generator.standard_normal((192, 192), np.float32) / np.float32(14)
            weights.append(numpy_helper.from_array(matrix, f"{name}w"))
            nodes.append(helper.make_node("MatMul", [value, f"{name}w"], [f"{name}m"]))
            nodes.append(helper.make_node("Tanh", [f"{name}m"], [name]))
            value = name
        ends.append(value)
    nodes.append(helper.make_node("Sum", ends, ["y"]))
    return _save(nodes, weights, ([16, 192], [16, 192]), folder / "branches.onnx")


def _additions(folder: Path) -> Path:
    nodes, weights, value = [], [], "x"
    for number in range(3000):
        weights.append(numpy_helper.from_array(np.full(8, number, np.float32), f"c{number}"))
        result = "y" if number == 2999 else f"v{number}"
        nodes.append(helper.make_node("Add", [value, f"c{number}"], [result]))
        value = result
    return _save(nodes, weights, ([8], [8]), folder / "additions.onnx")


def _inflated(folder: Path) -> Path:
    shape = numpy_helper.from_array(np.array([64, 1 << 18], np.int64), "shape")
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["large"]),
        helper.make_node("ReduceMax", ["large"], ["y"], axes=[1]),
    ]
    return _save(nodes, [shape], ([1], None), folder / "inflated.onnx", opset=13)


_MODELS: dict[str, Callable[[Path], Path]] = {
    "latency": _branches,
    "throughput": lambda folder: models.make("tiny-kernels", folder),
    "creation": _additions,
    "memory": _inflated,
}


def _configuration(settings: dict[str, Any]) -> Configuration:
    return Configuration((Choice("found", tuple(settings.items())),)) if settings else DEFAULTS


def _in_turns(model: Path, objective: Any, first: Configuration, second: Configuration, folder: Path) -> Interval:
    """Costs of `second` over those of `first`."""
    cores = ortmulti._core.usable_cores()
    job = Job(str(model), ("cpu",), objective, "pool", 2 * max(2, cores), _BLOCK_SECONDS.get(objective, 0.0))
    with Bench(job, folder, None) as bench:

        def cost(configuration: Configuration, _: int) -> float:
            bench.prepare((first, second))
            return bench.sample(configuration)

        rounds = measure_rounds((first, second), cost, _PAIRS, order=alternating)
    interval = Interval.of(ratios(rounds, second, first, float))
    assert interval is not None
    return interval


def measure(objective: Any, settings: list[str], model: Path, folder: Path) -> dict[str, Any]:
    """Both ways, and their bests against each other."""
    found: dict[str, Any] = {"objective": objective, "model": model.stem, "settings": settings}
    for name, exhaustive in (("search", False), ("grid", True)):
        begin = time.monotonic()
        result = ortmulti.tune(
            model, objective, devices="cpu", only=settings, budget=None, exhaustive=exhaustive,
            progress=lambda stage, text: print(f"{stage}: {text}", file=sys.stderr),
        )  # fmt: skip
        candidates = result.document["settings"]["candidates"]
        found["configurations"] = int(np.prod([1 + len(choices) for choices in candidates.values()]))
        found[name] = {
            "seconds": time.monotonic() - begin,
            "settings": dict(result.tuning.settings),
            "gain": dict(result.tuning.gain),
        }
        print(f"{name}: {found[name]}", file=sys.stderr)
    search, grid = (_configuration(found[name]["settings"]) for name in ("search", "grid"))
    same = dict(search.options) == dict(grid.options)
    ratio = Interval(1, 1, 1, 1, 1, 1) if same else _in_turns(model, objective, grid, search, folder)
    found["ratio"] = {"median": ratio.median, "low": ratio.low, "high": ratio.high, "confidence": ratio.confidence}
    found["time"] = found["search"]["seconds"] / found["grid"]["seconds"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="objectives", default="latency,creation,memory", help="objectives")
    parser.add_argument("--settings", help="the settings of both, instead of this script's; for all objectives")
    parser.add_argument("--model", type=Path, help="a model instead of this script's; for all objectives")
    parser.add_argument("--most-loss", type=float, default=0.02, help="part of the grid's best cost (default: 0.02)")
    parser.add_argument("--most-time", type=float, default=0.1, help="part of the grid's time (default: 0.1)")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    results = []
    for objective in arguments.objectives.split(","):
        settings = arguments.settings.split(",") if arguments.settings else _SETTINGS[objective]
        with tempfile.TemporaryDirectory() as folder:
            model = arguments.model or _MODELS[objective](Path(folder))
            found = measure(objective, settings, model, Path(folder))
        results.append(found)
        ratio = found["ratio"]
        print(f"{objective} ({found['model']}), {found['configurations']} configurations of {', '.join(settings)}:")
        for name in ("search", "grid"):
            one = found[name]
            gain = f", {one['gain']['ratio']:.3f} times as good as the defaults" if one["gain"] else ""
            print(f"  {name}: {one['seconds']:.1f} s: {describe(one['settings'])}{gain}")
        print(
            f"  the search's best has {ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}) of the cost of "
            f"the grid's, in {found['time']:.3f} of its time"
        )
    if arguments.json is not None:
        report = {"objectives": results, "machine": machine.describe()}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    good = all(one["ratio"]["low"] <= 1 + arguments.most_loss and one["time"] <= arguments.most_time for one in results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
