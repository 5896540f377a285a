"""How long does a model on a GPU sleep and wake, and what does a sleeping model keep?

In one process, in turns: a run awake; `Pool.sleep` and the request that wakes the pool, from a pinned copy, from the
files in the page cache, and with its session created again; copying as many bytes from pinned memory through the
driver; and onnxruntime's session created again, run and freed, with a context there. Outputs are compared bit for bit.

    python benchmarks/sleep.py bert-base.onnx --repeat 20 --json sleep.json

Inputs are those of model.npz beside model.onnx, or random ones. Memory is the difference of what the driver says is
free. What a first pool leaves when it is closed, such as kernels, is shared by all models and counted by itself.
`--graphs` captures CUDA graphs. Exit status 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import ortmulti
from ortmulti import _core
from ortmulti._runtime import machine
from ortmulti.tools import models

MIB = 2**20


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def median_ms(values: list[float]) -> dict[str, float]:
    return {"median": 1e3 * statistics.median(values), "low": 1e3 * min(values), "high": 1e3 * max(values)}


def pinned_copy(size: int) -> Callable[[], object]:
    """A copy of so many bytes from pinned memory to the GPU, by the driver, in the context of device 0."""
    cuda = ctypes.CDLL("libcuda.so.1")
    _core.cuda_memory(0)  # makes its context current
    host, device = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuMemAllocHost_v2(ctypes.byref(host), ctypes.c_size_t(size)) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(size)) == 0

    def copy() -> None:
        _core.cuda_memory(0)
        assert cuda.cuMemcpyHtoD_v2(device, host, ctypes.c_size_t(size)) == 0

    return copy


def measure(model: Path, repeat: int, graphs: bool, feed: dict[str, Any]) -> dict[str, Any]:
    _core.prewarm([0])
    nothing = _core.cuda_memory(0)[0]
    with ortmulti.load(model, 0, in_flight=1, cuda_graph=graphs) as first:
        for _ in range(5):
            first.run(feed)
    before = _core.cuda_memory(0)[0]
    pool = ortmulti.load(model, 0, in_flight=1, cuda_graph=graphs)
    expected = [pool.run(feed) for _ in range(5)][-1]
    awake = _core.cuda_memory(0)[0]
    pool.sleep()
    asleep = _core.cuda_memory(0)[0]
    pool.sleep("session")
    without_session = _core.cuda_memory(0)[0]
    pool.wake()
    pool.run(feed)
    weights = asleep - awake
    copy = pinned_copy(weights)
    times: dict[str, list[float]] = {}
    different = 0

    def note(name: str, value: float) -> None:
        times.setdefault(name, []).append(value)

    def cycle(source: str, **how: Any) -> int:
        note("run awake", seconds(lambda: pool.run(feed)))
        note(f"sleep, {source}", seconds(lambda: pool.sleep(**how)))
        outputs: list[Any] = []
        note(f"request that wakes, {source}", seconds(lambda: outputs.extend(pool.run(feed))))
        pool.sleep(**how)
        note(f"wake, {source}", seconds(pool.wake))
        note(f"first run after wake, {source}", seconds(lambda: pool.run(feed)))
        return sum(not np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))

    def create_again() -> None:
        session = onnxruntime.InferenceSession(model, providers=["CUDAExecutionProvider"])
        session.run(None, feed)

    for _ in range(repeat):
        different += cycle("files")
        note("copy from pinned memory", seconds(copy))
    for _ in range(max(2, repeat // 2)):
        different += cycle("session", level="session")
    note("first pinned sleep", seconds(lambda: pool.sleep(keep="pinned")))
    pool.wake()
    for _ in range(repeat):
        different += cycle("pinned", keep="pinned")
        note("copy from pinned memory", seconds(copy))
    pool.close()
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    for _ in range(max(2, repeat // 5)):
        note("onnxruntime's session again, and a run", seconds(create_again))
    return {
        "weights_bytes": weights,
        "shared_by_all_mib": (nothing - before) / MIB,
        "kept_awake_mib": (before - awake) / MIB,
        "kept_asleep_mib": (before - asleep) / MIB,
        "kept_without_session_mib": (before - without_session) / MIB,
        "different": different,
        "gigabytes_a_second": weights / statistics.median(times["copy from pinned memory"]) / 1e9,
        "milliseconds": {name: median_ms(values) for name, values in times.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=20, help="sleeps and wakes of each kind (default: %(default)s)")
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    results = {}
    for model in arguments.models:
        inputs = model.with_suffix(".npz")
        feed = dict(np.load(inputs)) if inputs.exists() else models.sample_inputs(model, seed=1)
        result = results[model.name] = measure(model, arguments.repeat, arguments.graphs, feed)
        print(f"{model.name}: weights {result['weights_bytes'] / MIB:.0f} MiB, {result['gigabytes_a_second']:.1f} GB/s")
        print(
            f"  kept awake {result['kept_awake_mib']:.0f} MiB, asleep {result['kept_asleep_mib']:.0f} MiB, without "
            f"session {result['kept_without_session_mib']:.0f} MiB; shared by all {result['shared_by_all_mib']:.0f} MiB"
        )
        for name, row in result["milliseconds"].items():
            print(f"  {name:42} {row['median']:9.2f} ms ({row['low']:.2f} to {row['high']:.2f})")
        print(f"  {result['different']} outputs differ", flush=True)
    if arguments.json:
        document = {"schema_version": 1, "kind": "sleep", "machine": machine.describe(), "models": results}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(any(result["different"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
