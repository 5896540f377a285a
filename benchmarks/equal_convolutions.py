"""What does a first run on a GPU cost for each convolution, and for equal ones? Plain onnxruntime, for its developers.

In the first run the CUDA provider has cuDNN make a plan for each Conv node: heuristics, and kernels that are compiled
in the process (NVRTC). Part of this work is under locks of the process. So sessions of several GPUs wait for each
other, and separate processes do not. Equal nodes mostly share the work: on an H200 one took 92 ms, 50 equal ones 179,
and 50 different ones 757 (equal-convolutions-1.31.1-2xh200 in results/measurements.json).

    python benchmarks/equal_convolutions.py --devices 0,1

prints milliseconds of the first run of models with --nodes convolutions, in fresh processes in turns: all of them
equal, and all different; then of two sessions of the second model at once: on one GPU, on the two --devices, and there
in two processes. If equal nodes shared nothing, "equal" would take about as long as "different". Only --json needs
ortmulti.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

SIDE = 56


def model(nodes: int, equal: bool) -> bytes:
    """A chain of 3 x 3 convolutions over float32 [1, 64, SIDE, SIDE]; different ones have 64, 65, ... channels."""
    random = np.random.default_rng(0)
    layers, weights, channels = [], [], 64
    for number in range(nodes):
        after = channels if equal else channels + 1
        weight = random.standard_normal((after, channels, 3, 3), np.float32) * np.float32(0.02)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        layers.append(helper.make_node("Conv", [f"x{number}", f"w{number}"], [f"x{number + 1}"], pads=[1, 1, 1, 1]))
        channels = after
    x = helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, [1, 64, SIDE, SIDE])
    y = helper.make_tensor_value_info(f"x{nodes}", onnx.TensorProto.FLOAT, [1, channels, SIDE, SIDE])
    graph = helper.make_graph(layers, "convolutions", [x], [y], weights)
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(content.SerializeToString())


def first_runs(content: bytes, devices: Sequence[int]) -> list[float]:
    """Seconds of the first runs of a session for each device, all at once."""
    x = {"x0": np.ones((1, 64, SIDE, SIDE), np.float32)}
    sessions = [
        onnxruntime.InferenceSession(content, providers=[("CUDAExecutionProvider", {"device_id": device})])
        for device in devices
    ]
    seconds = [0.0] * len(devices)
    begin = threading.Barrier(len(devices))

    def run(place: int) -> None:
        begin.wait()
        start = time.perf_counter()
        sessions[place].run(None, x)
        seconds[place] = time.perf_counter() - start

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds


def in_processes(nodes: int, equal: bool, devices: Sequence[int], together: bool) -> list[float]:
    """The same in a fresh process, or in one for each device at once."""
    groups = [list(devices)] if together else [[device] for device in devices]
    command = [sys.executable, __file__, "--nodes", str(nodes), "--child"]
    children = [
        subprocess.Popen([*command, json.dumps([equal, group])], stdout=subprocess.PIPE, text=True) for group in groups
    ]
    lines = [child.communicate()[0].splitlines()[-1] for child in children]
    return [seconds for line in lines for seconds in json.loads(line)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="0", help="GPUs, such as 0,1 (default: 0)")
    parser.add_argument("--nodes", type=int, default=50, help="convolutions of a model (default: 50)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        equal, group = json.loads(args.child)
        print(json.dumps(first_runs(model(args.nodes, equal), group)))
        return
    devices = [int(device) for device in args.devices.split(",")]
    cases: dict[str, tuple[int, bool, list[int], bool]] = {
        "one node": (1, True, devices[:1], True),
        "equal": (args.nodes, True, devices[:1], True),
        "different": (args.nodes, False, devices[:1], True),
        "different, two sessions of one GPU": (args.nodes, False, devices[:1] * 2, True),
    }
    if len(devices) > 1:
        cases["different, two GPUs"] = (args.nodes, False, devices[:2], True)
        cases["different, two GPUs, two processes"] = (args.nodes, False, devices[:2], False)
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(args.repeat):
        for name, case in cases.items():
            taken[name].append(1000 * max(in_processes(*case)))
    for name, milliseconds in taken.items():
        print(
            f"{name:36} {statistics.median(milliseconds):8.0f} ms ({min(milliseconds):.0f} to {max(milliseconds):.0f})"
        )
    if args.json:
        from ortmulti.bench.measure import machine

        report: dict[str, Any] = {"nodes": args.nodes, "milliseconds": taken, "machine": machine.describe()}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
