"""Does `ortmulti diagnose` predict the strategy that `ortmulti bench create` finds to be the best?

Five models are made: small, large, of many small nodes, convolution-heavy and quantized. For each, a diagnosis predicts
which strategy creates the sessions first, and a comparison of its own measures it; both are printed, with the
comparison's medians. A prediction agrees when it is the comparison's best, or when the comparison cannot tell the two
apart: their medians differ by less than 3%, or the predicted one's interval reaches down to the best median.

python -m benchmarks.diagnose_prediction [--devices cpu*2] [--repeat 5] [--megabytes 512] [--models small,large]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortmulti.bench import models
from ortmulti.bench.create.plan import Plan
from ortmulti.bench.diagnose.diagnosis import diagnose
from ortmulti.bench.measure import devices, results
from ortmulti.bench.measure.rounds import Interval

_EQUAL = 0.03


def make_models(folder: Path, megabytes: int) -> dict[str, Path]:
    """The five models, by what each stands for."""
    large = models.make("matmul", folder, megabytes=megabytes)
    return {
        "small": models.make("matmul", folder, megabytes=1),
        "large": large,
        "many small nodes": models.make("tiny-kernels", folder),
        "convolution-heavy": models.make("resnet50", folder),
        "quantized": quantized(folder),
    }


def quantized(folder: Path, size: int = 1024, layers: int = 24) -> Path:
    """A chain of integer matrix products as onnxruntime's dynamic quantization makes them, with their own scales."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for layer in range(layers):
        name = f"layer{layer}"
        weight = random.integers(-127, 128, (size, size), dtype=np.int8)
        scale = np.float32(1 / (73 * size**0.5))  # keeps values as large as they are
        weights += [
            numpy_helper.from_array(weight, f"{name}.weight"),
            numpy_helper.from_array(np.array(0, np.int8), f"{name}.zero"),
            numpy_helper.from_array(np.array(scale), f"{name}.scale"),
        ]
        quantized_value = [f"{name}.quantized", f"{name}.value_scale", f"{name}.value_zero"]
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [value], quantized_value),
            helper.make_node(
                "MatMulInteger",
                [quantized_value[0], f"{name}.weight", quantized_value[2], f"{name}.zero"],
                [f"{name}.sum"],
            ),
            helper.make_node("Cast", [f"{name}.sum"], [f"{name}.float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [quantized_value[1], f"{name}.scale"], [f"{name}.both"]),
        ]
        value = "y" if layer == layers - 1 else f"{name}.y"
        nodes.append(helper.make_node("Mul", [f"{name}.float", f"{name}.both"], [value]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "quantized", ends[:1], ends[1:], weights)
    path = folder / "quantized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def measured(model: Path, chosen: tuple[str, ...], repeat: int) -> dict[str, Interval]:
    """Seconds until the sessions are ready, by strategy, as `ortmulti bench create` has them."""
    document = Plan([model], [chosen], repeat=repeat).run()
    found: dict[str, list[float]] = {}
    for one in document["measurements"]:
        if "error" not in one:
            found.setdefault(one["strategy"], []).append(one["starting"] + one["creation"])
    intervals = {strategy: Interval.of(seconds) for strategy, seconds in found.items()}
    return {strategy: interval for strategy, interval in intervals.items() if interval is not None}


def agrees(predicted: str, ready: Mapping[str, Interval]) -> bool:
    """Whether the comparison's best is the predicted strategy, or cannot be told from it."""
    best = min(interval.median for interval in ready.values())
    own = ready.get(predicted)
    return own is not None and (own.median <= best * (1 + _EQUAL) or own.low <= best)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cpu*2")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512, help="size of the large model")
    parser.add_argument("--models", help="some of them, by what each stands for")
    parser.add_argument("--budget", type=float, default=50.0, help="seconds of each diagnosis")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    chosen = devices.parse_devices(arguments.devices)
    wanted = None if arguments.models is None else arguments.models.split(",")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        for what, model in make_models(Path(name), arguments.megabytes).items():
            if wanted is not None and what not in wanted:
                continue
            document = diagnose(model, chosen, budget=arguments.budget)
            prediction = document["prediction"]
            ready = measured(model, chosen, arguments.repeat)
            best = min(ready, key=lambda strategy: ready[strategy].median)
            row = {
                "model": what,
                "predicted": prediction["best"],
                "measured": best,
                "agrees": agrees(prediction["best"], ready),
                "prediction": prediction["seconds"],
                "ready": {strategy: interval.median for strategy, interval in ready.items()},
                "seconds": document["seconds"],
                "first_finding": document["findings"][0]["title"],
            }
            rows.append(row)
            print(
                f"{what}: predicted {row['predicted']}, measured {best}: {'agrees' if row['agrees'] else 'DIFFERS'}\n"
                f"  diagnose ({row['seconds']:.0f} s): {_list(row['prediction'])}\n"
                f"  bench create:   {_list(row['ready'])}\n"
                f"  first finding: {row['first_finding']}",
                flush=True,
            )
            if arguments.json is not None:  # after each: what there is by then is kept
                results.save(results.document("prediction", rows=rows), arguments.json)
    agreed = sum(row["agrees"] for row in rows)
    print(f"{agreed} of {len(rows)} predictions agree")
    return 0 if agreed == len(rows) else 1


def _list(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g} s" for name, value in sorted(seconds.items(), key=lambda item: item[1]))


if __name__ == "__main__":
    sys.exit(main())
