"""Does the memory of a large request come back, and what does that cost?

    python -m benchmarks.memory_back --json memory.json

asks for --requests answers of a text recogniser, one at a time, each with another number of images and another width;
at a quarter and at the half of them for one large request. Measured are the memory of the process (on a GPU: of the
GPU) before each large request, right after it and --after seconds later, and answers a second. Fresh processes take
turns: plain onnxruntime, a pool that keeps its memory (`trim_after=None`), and one by default. --steady asks for one
shape alone, without large requests.

The recogniser is six convolutions and a matrix product; --model takes another one with an input of [n, 3, 48, width].
Exit status 1 if an answer differs from onnxruntime's, or if the default's memory is then more than 1.25 times that
before the large request.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from onnx import helper, numpy_helper, parser

import ortmulti
from ortmulti import _core
from ortmulti.bench.measure import fresh_process, machine
from ortmulti.bench.measure.rounds import alternating, measure_rounds

CASES = ("onnxruntime", "kept", "default")
LARGE = (8, 3000)
MOST_KEPT = 1.25


def recogniser() -> bytes:
    """Images of height 48 and any width to 200 scores for each fourth column."""
    random = np.random.default_rng(0)
    channels = [3, 32, 64, 96, 128, 160, 192]
    strides = [(2, 2), (1, 1), (2, 2), (1, 1), (2, 1), (2, 1)]
    weights = [
        numpy_helper.from_array(
            random.standard_normal((after, before, 3, 3), np.float32) / (3 * before**0.5), f"w{layer}"
        )
        for layer, (before, after) in enumerate(itertools.pairwise(channels))
    ]
    weights.append(numpy_helper.from_array(random.standard_normal((192, 200), np.float32) / 20, "scores"))
    lines = [
        f"c{layer} = Conv <pads=[1,1,1,1], strides=[{down},{across}]> ({f'r{layer - 1}' if layer else 'x'}, w{layer})\n"
        f"r{layer} = Relu(c{layer})"
        for layer, (down, across) in enumerate(strides)
    ]
    lines.append("m = ReduceMean <axes=[2], keepdims=0> (r5)\nt = Transpose <perm=[0,2,1]> (m)")
    lines.append("s = MatMul(t, scores)\ny = Softmax <axis=2> (s)")
    graph = parser.parse_graph("recogniser (float[n,3,48,w] x) => (float[n,t,200] y) {" + "\n".join(lines) + "}")
    graph.initializer.extend(weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, for a process of its own."""
    model = Path(spec["model"]).read_bytes() if spec["model"] else recogniser()
    device, count = spec["device"], spec["requests"]
    run, end = session(spec["case"], model, device, spec["arena"])
    random = np.random.default_rng(0)
    pixels = random.random((LARGE[0], 3, 48, LARGE[1]), np.float32)

    def ask(images: int, width: int) -> Any:
        return run(np.ascontiguousarray(pixels[:images, :, :, :width]))

    large_at = () if spec["steady"] else (count // 4, count // 2)
    samples: list[dict[str, Any]] = []
    shapes, sums, waiting = set(), [], 0.0
    begin = time.perf_counter()
    for number in range(count):
        if samples and "later" not in samples[-1] and time.perf_counter() > waiting:
            samples[-1]["later"] = memory(device)
        if number in large_at:
            before = memory(device)
            ask(*LARGE)
            samples.append({"before": before, "after": memory(device)})
            waiting = time.perf_counter() + spec["after"]
        shape = (2, 320) if spec["steady"] else (int(random.integers(1, 5)), int(random.integers(64, spec["widest"])))
        shapes.add(shape)
        answer = ask(*shape)
        if number % 1000 == 0:
            sums.append(float(answer.sum(dtype=np.float64)))
    taken = time.perf_counter() - begin
    end_memory = memory(device)
    end()
    return {"rate": count / taken, "shapes": len(shapes), "large": samples, "end": end_memory, "sums": sums}


def memory(device: str) -> int:
    """The bytes that this process has in RAM; of a GPU: those that all processes use."""
    if device == "cpu":
        return psutil.Process().memory_info().rss
    free, total = _core.cuda_memory(int(device.removeprefix("cuda:")))
    return total - free


def session(case: str, model: bytes, device: str, arena: str = "") -> tuple[Callable[[Any], Any], Callable[[], object]]:
    """What runs a tensor, and what ends it; on the CPU with one thread."""
    gpu = {"arena_extend_strategy": arena} if arena else {}
    if case == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        cuda = ("CUDAExecutionProvider", {"device_id": device.removeprefix("cuda:"), **gpu})
        plain = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"] if device == "cpu" else [cuda]
        )
        name = plain.get_inputs()[0].name
        return lambda x: plain.run(None, {name: x})[0], lambda: None
    own = ortmulti.SessionOptions()
    own.intra_op_num_threads = 1
    kept = {"trim_after": None} if case == "kept" else {}
    pool = ortmulti.load(model, device, options=own, provider_options=gpu or None, **kept)
    name = pool.get_inputs()[0].name
    return lambda x: pool.run({name: x})[0], pool.close


def main(arguments: Sequence[str] | None = None) -> int:
    parser_ = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser_.add_argument("--model", default="", help="an .onnx file; default: the script's own")
    parser_.add_argument("--device", default="cpu", help="cpu (the default), or such as cuda:0")
    parser_.add_argument("--requests", type=int, default=20000)
    parser_.add_argument("--widest", type=int, default=464, help="pixels, which with 1 to 4 images are 1,600 shapes")
    parser_.add_argument("--after", type=float, default=30.0, help="seconds")
    parser_.add_argument("--steady", action="store_true", help="one shape")
    parser_.add_argument("--arena", default="", help="arena_extend_strategy of sessions on a GPU")
    parser_.add_argument("--repeat", type=int, default=1, help="rounds (default: 1)")
    parser_.add_argument("--json", type=Path, help="where to write the result")
    args = parser_.parse_args(arguments)
    common = {"model": args.model, "device": args.device, "requests": args.requests, "after": args.after}
    common |= {"steady": args.steady, "widest": args.widest, "arena": args.arena}

    def run(case: str, _: int) -> dict[str, Any]:
        return fresh_process.run(
            "benchmarks.memory_back", {**common, "case": case}, 3600, {"PYTHONPATH": ":".join(sys.path)}
        )

    rounds = measure_rounds(CASES, run, args.repeat, order=alternating)
    wrong = False
    print(f"{'':12}{'rate':>8}   MB before a large request, after it, {args.after:g} s later; at the end")
    for case in CASES:
        results = [each[case] for each in rounds]
        rate = statistics.median(result["rate"] for result in results)
        large = [sample for result in results for sample in result["large"]]
        told = [
            " ".join(f"{sample.get(when, 0) / 1e6:.0f}" for when in ("before", "after", "later")) for sample in large
        ]
        print(f"{case:12}{rate:8.1f}   {', '.join(told)}; {results[-1]['end'] / 1e6:.0f}")
        plain = rounds[0]["onnxruntime"]["sums"]
        wrong |= any(not np.allclose(result["sums"], plain, rtol=1e-3) for result in results)
        wrong |= case == "default" and any(s.get("later", 0) > MOST_KEPT * s["before"] for s in large)
    if args.json:
        report = {**common, "model": Path(args.model).stem, "rounds": rounds, "machine": machine.describe()}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
