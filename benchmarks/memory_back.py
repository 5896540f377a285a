"""Does the memory of a large request come back, and what does that cost?

    python -m benchmarks.memory_back --json memory.json

asks for --requests answers of a text recogniser, one at a time, each with another number of images and another width;
at a quarter and at the half of them for one large request. Measured are the memory of the process (on a GPU: of the
GPU) before each large request, right after it and --after seconds later, and answers a second. Fresh processes take
turns: plain onnxruntime, a pool that keeps its memory (`trim_after=None`), and one by default. --steady asks for one
shape alone, without large requests.

The recogniser is six convolutions and a matrix product; a model that is named instead takes [n, 3, 48, width].
Exit status 1 if an answer differs from onnxruntime's, or if the default's memory is then more than 1.25 times that
before the large request.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import ortmulti
from benchmarks import graphs
from ortmulti import _core
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure.rounds import alternating, spread_of_all
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option

LARGE = (8, 3000)
MOST_KEPT = 1.25


def _large(when: str) -> Callable[[Json], list[float]]:
    return lambda one: [sample[when] for sample in one["large"] if when in sample]


@dataclass
class MemoryBack(Script[str]):
    """The options of the command line."""

    kind, columns, timeout = "memory back", (
        Column("rate", "answers/s"),
        *(Column(when, f"{when}, MB", _large(when), spread_of_all, scale=1e6) for when in ("before", "after", "later")),
        Column("end", "end, MB", scale=1e6),
    ), 3600.0  # fmt: skip
    models: Sequence[Path] = option((), "an .onnx file instead of the script's own model")
    device: str = option("cpu", "cpu, or such as cuda:0")
    requests: int = option(20000, "answers of each process")
    widest: int = option(464, "pixels, which with 1 to 4 images are 1,600 shapes")
    after: float = option(30.0, "seconds")
    steady: bool = option(False, "one shape")
    arena: str = option("", "arena_extend_strategy of sessions on a GPU")
    repeat: int = option(1, "rounds")

    def cases(self, number: int = 0) -> Sequence[str]:
        return alternating(["onnxruntime", "kept", "default"], number)

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        good = [one for one in document["measurements"] if "error" not in one]
        plain = next((one["sums"] for one in good if one["case"] == "onnxruntime"), None)
        wrong = [one["case"] for one in good if plain and not np.allclose(one["sums"], plain, rtol=1e-3)]
        kept = any(
            sample.get("later", 0) > MOST_KEPT * sample["before"]
            for one in good
            for sample in one["large"]
            if one["case"] == "default"
        )
        texts = [f"{case} has other answers than onnxruntime" for case in wrong]
        return [*super().failures(document), *texts, *(["the default kept its memory"] if kept else [])]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, in this process."""
    model = Path(spec["models"][0]).read_bytes() if spec["models"] else graphs.recogniser()
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
    """Return the bytes that this process has in RAM; of a GPU: those that all processes use."""
    if device == "cpu":
        return psutil.Process().memory_info().rss
    free, total = _core.cuda_memory(int(device.removeprefix("cuda:")))
    return total - free


def session(case: str, model: bytes, device: str, arena: str = "") -> tuple[Callable[[Any], Any], Callable[[], object]]:
    """Return what runs a tensor, and what ends it; on the CPU with one thread."""
    gpu = {"arena_extend_strategy": arena} if arena else {}
    if case == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        cuda = ("CUDAExecutionProvider", {"device_id": device.removeprefix("cuda:"), **gpu})
        providers = ["CPUExecutionProvider"] if device == "cpu" else [cuda]
        plain = onnxruntime.InferenceSession(model, options, providers=providers)
        name = plain.get_inputs()[0].name
        return lambda x: plain.run(None, {name: x})[0], lambda: None
    own = ortmulti.SessionOptions()
    own.intra_op_num_threads = 1
    loading = ortmulti.Loading(trim_after=None) if case == "kept" else None
    pool = ortmulti.load(model, device, options=own, provider_options=gpu or None, loading=loading)
    name = pool.get_inputs()[0].name
    return lambda x: pool.run({name: x})[0], pool.close


if __name__ == "__main__":
    sys.exit(script.main(MemoryBack))
