"""One setting: all ways side by side in one process, a block of runs of each in turns."""

from __future__ import annotations

import gc
import math
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pytorch.plan import Contender, Way
from ortmulti.bench.measure.rounds import measure_rounds, of_case
from ortmulti.bench.models.resnet50 import INPUT_SHAPE
from ortmulti.bench.strategies.base import Array

from . import ort_ways, torch_ways
from .plan import TOLERANCES, Setting

_WARM_RUNS = 5


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Times the ways of a setting.

    Args:
        spec: "setting" (the fields of `Setting`), "model" and "fp32_model" (paths), "device", "compile_modes",
            "rounds", "block_seconds"; "benchmark": whether cuDNN's algorithms are searched; without, PyTorch's plain
            way is measured alone.

    Returns:
        "torch": releases. "ways": for each, "side", "name", and "seconds" (of a run, by round), "runs" (in a block),
        "difference" (to the fp32 output, as a part of its largest value) and "equal" (whether that is tolerated); or
        "error".
    """
    import torch  # which may be missing where this module is only looked at

    setting = Setting(**spec["setting"])
    device, model = spec["device"], Path(spec["model"])
    if device != "cpu":
        torch.cuda.set_device(device)
    generator = np.random.default_rng(0)
    fp32_images = generator.standard_normal((setting.batch, *INPUT_SHAPE), dtype=np.float32)
    images = fp32_images.astype(np.float16) if setting.precision == "fp16" else fp32_images
    expected = torch_ways.reference(torch, Path(spec["fp32_model"]), images.astype(np.float32), device)
    torch_ways.configure(torch, setting.precision, spec["benchmark"])
    if spec["benchmark"]:
        contenders = [
            *ort_ways.contenders(model, images, device, setting),
            *torch_ways.contenders(torch, model, images, device, setting, spec["compile_modes"]),
        ]
    else:
        contenders = torch_ways.plain(torch, model, images, device, setting)
    with ExitStack() as stack:
        ways, results = _open_all(contenders, stack, expected, TOLERANCES[setting.precision], spec["block_seconds"])
        rounds = measure_rounds([*ways], lambda name, _: _seconds(ways[name], results[name]["runs"]), spec["rounds"])
        for name in ways:
            results[name]["seconds"] = of_case(rounds, name)
    return {"torch": _releases(torch), "ways": list(results.values())}


def _open_all(
    contenders: list[Contender], stack: ExitStack, expected: Array, tolerance: float, block_seconds: float
) -> tuple[dict[str, Way], dict[str, dict[str, Any]]]:
    """Those that work, warmed up, and the beginnings of all results."""
    ways: dict[str, Way] = {}
    results: dict[str, dict[str, Any]] = {}
    for contender in contenders:
        key = f"{contender.side}: {contender.name}"
        described = {"side": contender.side, "name": contender.name}
        try:
            way = stack.enter_context(contender.open())
            for _ in range(_WARM_RUNS):
                output = way.run()
            difference = _difference(way.array(output), expected)
            once = min(_seconds(way, 1) for _ in range(_WARM_RUNS))
        except Exception as error:  # of compilers, of releases without an argument: the others are compared still
            text = " ".join(str(error).split())
            results[key] = {**described, "error": f"{type(error).__name__}: {text[:500]}"}
            continue
        ways[key] = way
        results[key] = {
            **described,
            "difference": difference,
            "equal": difference <= tolerance,
            "runs": max(1, math.ceil(block_seconds / once)),
            "seconds": [],
        }
    return ways, results


def _difference(output: Array, expected: Array) -> float:
    if output.shape != expected.shape:
        return math.inf
    difference = float(np.abs(output.astype(np.float64) - expected).max() / np.abs(expected).max())
    return difference if math.isfinite(difference) else math.inf


def _seconds(way: Way, runs: int) -> float:
    """Of one run, on average of `runs`."""
    run = way.run
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        for _ in range(runs):
            run()
        return (time.perf_counter() - begin) / runs
    finally:
        gc.enable()


def _releases(torch: Any) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
    }
