"""What do captures and trims cost another model, and what do CUDA graphs cost where no shape comes again?

    python -m benchmarks.cuda_graphs bert.onnx resnet50.onnx --devices 0

measures the latency of one client of the first model on the last of the --devices while shapes of the second model,
which must have an open batch dimension, are run again and again on the first of them ("runs"); and while their pool
also gives memory back every 100 ms ("trims").

    python -m benchmarks.cuda_graphs identity --new-shapes 100000 --devices 0

measures pools without graphs ("off") and with the default ("auto") where no shape comes again: the model's input has
two open dimensions. `ortmulti bench run --variants core,core+graph,core+graph=off` measures what graphs gain.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import ortmulti
from ortmulti.bench import models, script
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option
from ortmulti.bench.serve.clients import ClosedLoop, measure_loop


@dataclass
class CudaGraphs(Script[str]):
    """The options of the command line."""

    kind, columns = "CUDA graphs", (
        Column("throughput", "answers/s"),
        *(Column(name, f"{name}, ms", scale=1e-3, rare=True) for name in ("p50", "p99")),
        Column("others", "runs of the other model/s", rare=True),
        Column("graph_runs", "runs of graphs", rare=True),
        Column("gpu_memory", "GPU, MB", scale=1e6, rare=True),
        Column("resident", "host, MB", scale=1e6, rare=True),
    )  # fmt: skip
    models: Sequence[Path] = option((), "one or two models: names of `ortmulti models`, or .onnx files")
    devices: tuple[str, ...] = option(("cuda:0",), "such as 0,1", parse_devices)
    sequence: int = option(128, "size of open dimensions but the batch")
    new_shapes: int = option(0, "requests, each of another shape")
    seconds: float = option(2.0, "of each load")
    repeat: int = option(3, "rounds")

    def cases(self, number: int = 0) -> Sequence[str]:
        return ("off", "auto") if self.new_shapes else ("runs", "trims")


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, in this process."""
    return measure_new_shapes(spec) if spec["new_shapes"] else measure_beside(spec)


def measure_new_shapes(spec: dict[str, Any]) -> dict[str, Any]:
    """Send requests of 1, 2, ... rows of 1, 2, ... columns, each shape once."""
    count = spec["new_shapes"]
    columns = round(count**0.5)
    values = np.zeros((count // columns + 1, columns), np.float32)
    shapes = ((1 + number // columns, 1 + number % columns) for number in range(count))
    graphs: Any = "auto" if spec["case"] == "auto" else False
    with ortmulti.load(spec["models"][0], spec["devices"][:1], cuda_graph=graphs, warmup=True) as pool:
        name = pool.get_inputs()[0].name
        begin = time.perf_counter()
        answered = sum(1 for _ in pool.map({name: values[:rows, :width]} for rows, width in shapes))
        taken = time.perf_counter() - begin
        [device] = pool.stats().devices
    found = {"throughput": answered / taken, "graph_runs": device.graph_runs, "gpu_memory": device.memory_used}
    return {**found, "resident": psutil.Process().memory_info().rss}


def measure_beside(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure one client's latency while another model's shapes are run, or trimmed, again and again."""
    model, beside = spec["models"]
    feed = models.sample_inputs(model, sequence=spec["sequence"], seed=1)
    shapes = [models.sample_inputs(beside, batch=batch, seed=1) for batch in (1, 2, 3)]
    turns = itertools.cycle(shapes)

    def trim() -> None:
        time.sleep(0.1)
        other.trim()

    with (
        ortmulti.load(beside, spec["devices"][:1], cuda_graph=False, in_flight=1) as other,
        ortmulti.load(model, spec["devices"][-1:], warmup=True) as pool,
    ):
        for _ in range(3):
            for shape in shapes:
                other.run(shape)
        with ClosedLoop([lambda: other.run(next(turns)), *[trim] * (spec["case"] == "trims")]) as loop:
            result = measure_loop([partial(pool.run, feed)], spec["seconds"])
    return {**result, **result["latency"], "others": len(loop.answers[0]) / spec["seconds"]}


if __name__ == "__main__":
    sys.exit(script.main(CudaGraphs))
