"""Requests on a GPU whose memory is scarce.

    python -m benchmarks.memory_pressure --json pressure.json

turns: two models whose largest requests fit the GPU only one at a time, asked in turns, beside a process that takes the
    rest: two pools, and two sessions of plain onnxruntime. Counted are the answers.
callers: 8 and 64 threads that run one InferenceSession of ResNet-50, and one of plain onnxruntime: the rate, and the
    memory that the threads add.
repository: 12 models of 105 MB, whose inputs have one of --shapes random shapes, within --budget, for --seconds: alone,
    beside a thread that allocates and frees 0 to 4 GB every 50 ms, and beside one that does so with 16 MB. Counted are
    failures; the memory in use is sampled every 20 ms, beside that of kernels, which one model loads before.

Each has a process of its own. Exit status 1 if a pool, a session or the repository failed a request or answered another
number than onnxruntime, or if the repository alone took more than its budget.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ortmulti
from benchmarks import graphs
from benchmarks.memory_back import memory, session
from ortmulti import _core
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.models import make
from ortmulti.bench.script import Script, names, option
from ortmulti.bench.serve.clients import ClosedLoop, closed_loop, measure_loop, sampled

LARGE, SMALL = (64, 3000), (1, 320)
MODELS, CLIENTS = 12, 24
PEAK = 1 << 32
CASES = (
    *("turns/onnxruntime", "turns/ortmulti", "callers/onnxruntime", "callers/ortmulti"),
    *("repository/alone", "repository/beside 4 GB", "repository/beside 16 MB"),
)

FILL = """
import ctypes, sys
from ortmulti import _core
free, _ = _core.cuda_memory(int(sys.argv[1]))
pointer = ctypes.c_uint64()
taken = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(free - int(sys.argv[2])))
print(taken, flush=True)
input()
"""


@contextmanager
def filled(device: str, left: int) -> Iterator[None]:
    """Another process has all of the GPU's memory but these bytes."""
    command = [sys.executable, "-c", FILL, device.removeprefix("cuda:"), str(left)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "0\n"
        try:
            yield
        finally:
            other.communicate("\n")


def turns(spec: dict[str, Any]) -> dict[str, Any]:
    device, model = spec["device"], graphs.recogniser()
    pixels = np.random.default_rng(0).random((LARGE[0], 3, 48, LARGE[1]), np.float32)
    small = np.ascontiguousarray(pixels[: SMALL[0], :, :, : SMALL[1]])

    def start() -> tuple[Callable[[Any], Any], Callable[[], object]]:
        run, end = session("onnxruntime" if spec["case"] == "onnxruntime" else "default", model, device)
        for _ in range(3):
            run(small)
        return run, end

    run, end = start()
    before = memory(device)
    wanted = float(run(pixels).sum(dtype=np.float64))
    needed = memory(device) - before
    end()
    del run, end
    both = [start(), start()]
    outcomes: Counter[str] = Counter()
    with filled(device, needed * 13 // 10):
        for number in range(10):
            try:
                total = float(both[number % 2][0](pixels).sum(dtype=np.float64))
                outcomes["answers" if abs(total - wanted) <= 1e-3 * abs(wanted) else "wrong"] += 1
            except Exception as error:
                outcomes[type(error).__name__] += 1
    for _, end in both:
        end()
    return {"needed": needed, "outcomes": dict(outcomes)}


def callers(spec: dict[str, Any]) -> dict[str, Any]:
    device = spec["device"]
    with tempfile.TemporaryDirectory() as folder:
        model = str(make("resnet50", Path(folder)))
        provider = [("CUDAExecutionProvider", {"device_id": device.removeprefix("cuda:")})]
        if spec["case"] == "onnxruntime":
            import onnxruntime

            plain = onnxruntime.InferenceSession(model, providers=provider)
        else:
            plain = ortmulti.InferenceSession(model, providers=provider)
    name = plain.get_inputs()[0].name
    feed = {name: np.random.default_rng(0).random((1, 3, 224, 224), np.float32)}
    [wanted] = plain.run(None, feed)
    wrong: list[int] = []

    def ask(count: int) -> None:
        [answer] = plain.run(None, feed)
        if not np.allclose(answer, wanted, rtol=1e-2, atol=1e-2):
            wrong.append(count)

    found: dict[str, Any] = {}
    for count in (8, 64):
        plain.run(None, feed)  # frees what threads had that have ended
        before = memory(device)
        rate = measure_loop([partial(ask, count)] * count, spec["seconds"] / 4)["throughput"]
        found[str(count)] = {"rate": rate, "memory": memory(device) - before, "wrong": wrong.count(count)}
    return found


def neighbour(device: str, most: int) -> ClosedLoop:
    """A thread of this process that allocates and frees up to so many bytes."""
    cuda, numbers = ctypes.CDLL("libcuda.so.1"), random.Random(0)

    def work() -> None:
        _core.cuda_memory(int(device.removeprefix("cuda:")))  # makes its context current
        pointer, size = ctypes.c_uint64(), ctypes.c_size_t(numbers.randrange(1, most))
        taken = cuda.cuMemAlloc_v2(ctypes.byref(pointer), size) == 0
        time.sleep(0.05)
        if taken:
            cuda.cuMemFree_v2(pointer)

    return ClosedLoop([work])


def repository(spec: dict[str, Any]) -> dict[str, Any]:
    device = spec["device"]
    numbers = np.random.default_rng(0)
    pixels = numbers.random((8, 3, 48, 1024), np.float32)
    shapes = [(int(numbers.integers(1, 9)), int(numbers.integers(64, 1025))) for _ in range(spec["shapes"])]
    inputs = [np.ascontiguousarray(pixels[:images, :, :, :width]) for images, width in shapes]
    outcomes: Counter[str] = Counter()
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.onnx" for number in range(MODELS)]
        for number, path in enumerate(paths):
            path.write_bytes(graphs.recogniser(number))
        with ortmulti.create_sessions(paths[0], device) as [loading]:
            for x in inputs:
                loading.run(None, {"x": x})
        before = memory(device)
        budget = {"host_memory" if device == "cpu" else "gpu_memory": spec["budget"]}
        with ortmulti.ModelRepository(device, **budget) as models:
            for number, path in enumerate(paths):
                models.add(str(number), path)

            def ask(numbers: random.Random) -> None:
                name = str(min(int(numbers.expovariate(0.25)), MODELS - 1))
                try:
                    models.run(name, {"x": numbers.choice(inputs)}, timeout=60)
                    outcome = "answers"
                except Exception as error:
                    outcome = f"{type(error).__name__}: {error}"
                with lock:
                    outcomes[outcome] += 1

            most = {"beside 4 GB": PEAK, "beside 16 MB": 1 << 24}.get(spec["case"], 0)
            asks = [partial(ask, random.Random(client)) for client in range(CLIENTS)]
            with (
                neighbour(device, most) if most else nullcontext(),
                sampled(lambda: memory(device), 0.02) as seen,
                ClosedLoop(asks) as clients,
            ):
                clients.go_on(spec["seconds"])
            use = models.stats().devices[0]
            evictions = sum(each.evictions for model in models.stats().models.values() for each in model.devices)
    latency = closed_loop(itertools.chain(*clients.answers), 0, time.perf_counter_ns())["latency"]
    return {
        "outcomes": dict(outcomes),
        "p50_ms": latency["p50"] * 1e3,
        "p99_ms": latency["p99"] * 1e3,
        "most": seen[0] - before,
        "used": use.used,
        "budget": use.budget,
        "evictions": evictions,
    }


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, in this process."""
    part, spec["case"] = spec["case"].split("/")
    return {"turns": turns, "callers": callers, "repository": repository}[part](spec)


@dataclass
class MemoryPressure(Script[str]):
    """The options of the command line."""

    kind = "memory pressure"
    device: str = option("cuda:0", "device")
    which: tuple[str, ...] = option(CASES, "cases", names)
    budget: str = option("3GiB", "of the repository")
    shapes: int = option(40, "of the repository's inputs")
    seconds: float = option(20.0, "of a case")

    def cases(self, number: int = 0) -> Sequence[str]:
        return self.which

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        case = measurement["case"]
        if "error" in measurement or case == "turns/onnxruntime":
            return super().complaints(measurement)
        if case.startswith("callers"):
            return ["wrong answers"] if any(measurement[count]["wrong"] for count in ("8", "64")) else []
        failed = [outcome for outcome in measurement["outcomes"] if outcome != "answers"]
        if case == "repository/alone" and measurement["most"] > measurement["budget"]:
            failed.append(f"{measurement['most']} bytes are more than the budget")
        return failed


if __name__ == "__main__":
    sys.exit(script.main(MemoryPressure))
