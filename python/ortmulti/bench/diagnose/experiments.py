"""The experiments of a diagnosis in their order, as many of them as its budget allows."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmulti.bench.diagnose.runs import Bench
from ortmulti.bench.measure import page_cache
from ortmulti.bench.measure.floor import cuda_devices
from ortmulti.bench.measure.nvml import Nvml
from ortmulti.bench.measure.rounds import round_numbers
from ortmulti.errors import Error

_LEVELS_SECONDS = 4.0


def measure_all(bench: Bench, found: Mapping[str, Any]) -> None:
    """Measure what each way waits for, and which of the machine's settings cost time.

    Args:
        bench: runs them.
        found: the devices, as `probes.devices` found them.

    Raises:
        EndedError: see `Bench`.
    """
    left = bench.plan.part_of_budget("experiments") - bench.elapsed()
    for number in round_numbers(1 if bench.plan.quick else 3, left, estimate="none"):
        gil(bench)
        if gpus := cuda_devices(bench.devices):
            driver(bench, gpus, found)
        if number < 2:  # the second one says whether the first one met another load by chance
            cold(bench)
    if bench.plan.quick:
        return
    if _in_time(bench):
        threads = len(bench.devices)
        bench.experiment(
            "memory", lambda: bench.probe("bandwidth", threads=threads), way="native", devices=bench.devices
        )
    if _in_time(bench):
        device = bench.devices[:1]
        page_cache.warm(bench.files)
        spec = {"model": str(bench.plan.model), "device": device[0], "seconds": _LEVELS_SECONDS}
        spec["settings"] = bench.plan.settings_for(device, bench.cores)
        bench.experiment("levels", lambda: bench.probe("levels", **spec), way="native", devices=device)


def _in_time(bench: Bench) -> bool:
    return bench.elapsed() < bench.plan.part_of_budget("experiments")


def gil(bench: Bench) -> None:
    """The heartbeat beside a creation, for onnxruntime's sessions and for ortmulti's."""
    device = bench.devices[0]
    for library, ways in (("onnxruntime", ("threads", "sequential", "processes")), ("ortmulti", ("native", "shared"))):
        way = next((way for way in ways if way in bench.plan.ways), None)
        if way is None:
            continue
        page_cache.warm(bench.files)
        settings = bench.plan.settings_for([device], bench.cores)
        spec = {
            "library": library,
            "model": str(bench.plan.model),
            "device": device,
            "threads": settings["intra_op_num_threads"],
            "settings": settings,
        }
        work = functools.partial(bench.fresh, "ortmulti.bench.measure.gil", **spec)
        bench.experiment("gil", work, way=way, devices=[device], library=library)


def driver(bench: Bench, gpus: list[str], found: Mapping[str, Any]) -> None:
    """The driver's start alone: contexts one by one and at once; with the used GPUs visible alone; kept loaded."""
    floor(bench, "contexts", gpus, at_once=False)
    if len(gpus) > 1:
        contexts = functools.partial(bench.probe, "contexts", devices=gpus)
        bench.experiment("contexts", contexts, way="native", devices=gpus, at_once=True)
    if (found["visible"] or 0) > len(gpus):
        floor(bench, "visible", gpus, only_these=True)
    if bench.held_open_helps:
        floor(bench, "held", gpus, held=True)


def floor(
    bench: Bench, name: str, gpus: list[str], *, only_these: bool = False, held: bool = False, **fields: Any
) -> dict[str, Any]:
    """cuInit and the contexts one by one.

    Args:
        bench: runs it.
        name: the experiment's.
        gpus: whose contexts.
        only_these: whether the process sees only these GPUs.
        held: whether something keeps the driver loaded meanwhile, as persistence mode would.
        fields: further fields of the run.
    """
    environment = {"CUDA_VISIBLE_DEVICES": visible_devices(gpus)} if only_these else {}
    named = [f"cuda:{number}" for number in range(len(gpus))] if only_these else gpus
    with contextlib.ExitStack() as stack:
        if held and (nvml := Nvml.open()) is not None:
            stack.enter_context(nvml)
        work = functools.partial(bench.fresh, "ortmulti.bench.measure.floor", environment, devices=named)
        return bench.experiment(name, work, way="native", devices=gpus, **fields)


def visible_devices(gpus: list[str]) -> str:
    """Return the CUDA_VISIBLE_DEVICES with which a process sees only these GPUs."""
    current = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [] if current is None else [name.strip() for name in current.split(",")]
    indices = [int(gpu.removeprefix("cuda:")) for gpu in gpus]
    return ",".join(names[index] if index < len(names) else str(index) for index in indices)


def cold(bench: Bench) -> None:
    """A start with the model out of the page cache, and how fast its files are read then and a moment later."""
    try:
        page_cache.drop(bench.files)
    except Error:  # a file system in memory, or files of others: they never come from a disk
        return
    way = bench.plan.ways[0]
    bench.trace(way, bench.devices[:1], cache="cold")
    size = sum(file.stat().st_size for file in bench.files)

    def read(prepare: Callable[[Sequence[Path]], float]) -> dict[str, float]:
        prepare(bench.files)
        return {"seconds": page_cache.read_sequentially(bench.files), "bytes": size}

    for cache, prepare in (("cold", page_cache.drop), ("warm", page_cache.warm)):
        bench.experiment("disk", functools.partial(read, prepare), way=way, devices=bench.devices[:1], cache=cache)
