"""What do CUDA graphs gain, by themselves (`cuda_graph="auto"`) or asked for, and whom does a trim disturb?

    python -m benchmarks.cuda_graphs bert.onnx --devices 0 --sequence 128 --json graphs.json

measures answers a second, processor time per second (cores), and latency: of pools without graphs (off), with the
default (auto) and with `cuda_graph=True` and one or three sessions (on 1, on 3), and of plain onnxruntime (a session
for each GPU) with several threads a GPU. --cases chooses from them. Fresh processes take turns. Every pool is measured
with one client, and with 32 a GPU; "auto" when it has its graphs. Answers are compared with onnxruntime's.

    python -m benchmarks.cuda_graphs bert.onnx --beside resnet50.onnx --devices 0

measures the latency of one client of the model on the last of the --devices while shapes of the other model, which must
have an open batch dimension, are run again and again on the first of them; and while their pool also gives memory back
every 100 ms (trims).

    python -m benchmarks.cuda_graphs identity.onnx --new-shapes 100000 --devices 0

measures "off" and "auto" where no shape comes again: the model's input has two open dimensions.

Exit status 1 if an answer differs by more than --tolerance of the largest value.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import ortmulti
from benchmarks import gpu_feeding
from ortmulti.bench import models
from ortmulti.bench.measure import fresh_process, machine
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.rounds import measure_rounds

POOLS: dict[str, Any] = {"off": False, "auto": "auto", "on": True}
CASES = ("off", "auto", "on 1", "on 3", "onnxruntime 1", "onnxruntime 4", "onnxruntime 8", "onnxruntime 16")


def load(asks: Sequence[Callable[[], object]], seconds: float) -> dict[str, float]:
    """A closed loop with a client for each of `asks`."""
    found = gpu_feeding.loop(asks, 0.0, seconds)
    p50, p99 = (found["latency"][name] * 1e3 for name in ("p50", "p99"))
    return {
        "clients": found["clients"],
        "rate": found["throughput"],
        "cores": found["cores"],
        "p50_ms": p50,
        "p99_ms": p99,
    }


def until_graphs(pool: ortmulti.Pool, feed: dict[str, Any]) -> bool:
    """Ask until every device answers by a graph, for 60 seconds at most."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if all(device.graph_runs for device in pool.stats().devices):
            return True
        list(pool.map([feed] * 16))
    return False


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, for a process of its own."""
    if spec["beside"]:
        return measure_beside(spec)
    if spec["new_shapes"]:
        return measure_new_shapes(spec)
    case, devices = spec["case"], spec["devices"]
    feed = models.sample_inputs(spec["model"], spec["batch"], sequence=spec["sequence"], seed=1)
    kind, _, number = case.partition(" ")
    import onnxruntime

    def session(device: int) -> Any:
        cuda = ("CUDAExecutionProvider", {"device_id": device})
        return onnxruntime.InferenceSession(spec["model"], providers=[cuda])

    if kind not in POOLS:
        plain = [session(device) for device in range(len(devices))]
        for one in plain:
            one.run(None, feed)
        asks = [partial(one.run, None, feed) for one in plain] * int(number)
        return {"loads": [load(asks, spec["seconds"])]}
    wanted = session(0).run(None, feed)
    with ortmulti.load(spec["model"], devices, int(number or 1), cuda_graph=POOLS[kind], warmup=True) as pool:
        begin = time.perf_counter()
        captured = kind != "off" and until_graphs(pool, feed)
        after = time.perf_counter() - begin
        alone = [partial(pool.run, feed)]
        many = alone * (32 * len(devices))
        load(many, spec["seconds"])  # the number in flight is found
        loads = [load(asks, spec["seconds"]) for asks in (alone, many)]
        differences = [
            float(np.max(np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)), initial=0.0))
            / max(float(np.max(np.abs(other), initial=0.0)), 1e-30)
            for answers in pool.map([feed] * 8)
            for one, other in zip(answers, wanted, strict=True)
        ]
        stats = [
            {"memory": device.memory_used, "in_flight": device.in_flight, "graph_sessions": device.graph_sessions}
            for device in pool.stats().devices
        ]
    return {
        "loads": loads,
        "captured": captured,
        "graphs_after_s": after,
        "difference": max(differences),
        "devices": stats,
    }


def measure_new_shapes(spec: dict[str, Any]) -> dict[str, Any]:
    """Requests of 1, 2, ... rows of 1, 2, ... columns, each shape once."""
    count = spec["new_shapes"]
    columns = round(count**0.5)
    values = np.zeros((count // columns + 1, columns), np.float32)
    shapes = ((1 + number // columns, 1 + number % columns) for number in range(count))
    with ortmulti.load(spec["model"], spec["devices"][:1], cuda_graph=POOLS[spec["case"]], warmup=True) as pool:
        name = pool.get_inputs()[0].name
        begin = time.perf_counter()
        answered = sum(1 for _ in pool.map({name: values[:rows, :width]} for rows, width in shapes))
        taken = time.perf_counter() - begin
        [device] = pool.stats().devices
    return {
        "loads": [],
        "rate": round(answered / taken),
        "graph_runs": device.graph_runs,
        "gpu_memory": device.memory_used,
        "resident": psutil.Process().memory_info().rss,
    }


def measure_beside(spec: dict[str, Any]) -> dict[str, Any]:
    """One client's latency while another model's shapes are run, or trimmed, again and again."""
    feed = models.sample_inputs(spec["model"], sequence=spec["sequence"], seed=1)
    shapes = [models.sample_inputs(spec["beside"], batch=batch, seed=1) for batch in (1, 2, 3)]
    stop = threading.Event()
    done = 0

    def others() -> None:
        nonlocal done
        while not stop.is_set():
            other.run(shapes[done % 3])
            done += 1

    def trims() -> None:
        while spec["case"] == "trims" and not stop.wait(0.1):
            other.trim()

    with (
        ortmulti.load(spec["beside"], spec["devices"][:1], cuda_graph=False, in_flight=1) as other,
        ortmulti.load(spec["model"], spec["devices"][-1:], warmup=True) as pool,
    ):
        for _ in range(3):
            for shape in shapes:
                other.run(shape)
        threads = [threading.Thread(target=target) for target in (others, trims)]
        for thread in threads:
            thread.start()
        result = load([partial(pool.run, feed)], spec["seconds"])
        stop.set()
        for thread in threads:
            thread.join()
    return {"loads": [result], "others": done / spec["seconds"]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an .onnx file")
    parser.add_argument("--devices", default="0", help="GPUs, such as 0,1 (default: 0)")
    parser.add_argument("--batch", type=int, default=1, help="size of an open batch dimension (default: 1)")
    parser.add_argument("--cases", default=",".join(CASES), help=f"default: {', '.join(CASES)}")
    parser.add_argument("--sequence", type=int, default=128, help="size of open dimensions but the batch")
    parser.add_argument("--beside", default="", help="another model, whose shapes are run meanwhile")
    parser.add_argument("--new-shapes", type=int, default=0, help="requests, each of another shape")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load")
    parser.add_argument("--repeat", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    devices = list(dict.fromkeys(parse_devices(args.devices)))
    cases = ["off", "auto"] if args.new_shapes else args.cases.split(",")
    cases = ["runs", "trims"] if args.beside else cases
    settings = ("model", "batch", "sequence", "beside", "new_shapes", "seconds")
    common = {"devices": devices, **{name: getattr(args, name) for name in settings}}

    def run(case: str, _: int) -> dict[str, Any]:
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            return fresh_process.run("benchmarks.cuda_graphs", {**common, "case": case}, 300, path)
        except fresh_process.MeasurementError as error:
            return {"loads": [], "error": str(error)}

    rounds = measure_rounds(cases, run, args.repeat)
    print(f"{'':16}{'clients':>8}{'rate':>9}{'cores':>7}{'p50 ms':>9}{'p99 ms':>9}  captured, largest difference")
    wrong = False
    for case in cases:
        results = [each[case] for each in rounds]
        if args.new_shapes:
            found = {name: [result[name] for result in results] for name in list(results[0])[1:]}
            print(case, ", ".join(f"{name} {values}" for name, values in found.items()))
            continue
        difference = max(result.get("difference", 0.0) for result in results)
        wrong |= difference > args.tolerance
        for place in range(min(len(result["loads"]) for result in results)):
            clients, rate, cores, p50, p99 = (
                statistics.median(result["loads"][place][name] for result in results)
                for name in ("clients", "rate", "cores", "p50_ms", "p99_ms")
            )
            captured = ["no", "yes"][all(result.get("captured", False) for result in results)]
            print(f"{case:16}{clients:8.0f}{rate:9.0f}{cores:7.2f}{p50:9.2f}{p99:9.2f}  {captured}, {difference:.2g}")
    if args.json:
        report = {**common, "model": Path(args.model).stem, "beside": Path(args.beside).stem, "rounds": rounds}
        args.json.write_text(json.dumps({**report, "machine": machine.describe()}, indent=1) + "\n", encoding="utf-8")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
