"""The thread settings of ONNX Runtime's documentation as cases to measure, and the models for them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published.script import Case
from ortmulti._runtime.libraries import release_of
from ortmulti.bench import models
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import machine
from ortmulti.options.config_entries import SESSION

WORKER = "benchmarks.published.threads_worker"
BRANCHES, LAYERS_OF_A_BRANCH, WIDTH = 16, 6, 192
SESSIONS = 4
NODE_THREADS = 8

DEFAULT = "default"
NO_SPINNING, SPIN_DURATION, SPIN_AND_BACKOFF = "no spinning", "spinning for 1 ms", "spinning for 1 ms, backoff 8"
SPINNING: Mapping[str, Mapping[str, str]] = {
    NO_SPINNING: {"session.intra_op.allow_spinning": "0"},
    SPIN_DURATION: {"session.intra_op.spin_duration_us": "1000"},
    SPIN_AND_BACKOFF: {"session.intra_op.spin_duration_us": "1000", "session.intra_op.spin_backoff_max": "8"},
}
PARALLEL = "parallel"
FREE, BOUND = "no affinity", "a core for each thread"
ONE_NODE, TWO_NODES = "one node", "two nodes"
OWN_POOLS, ONE_POOL = f"{SESSIONS} sessions, own pools", f"{SESSIONS} sessions, global pool"


def write_branches(folder: Path) -> Path:
    """A network of 16 branches that join in a sum, each of a few matrix products."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights, ends = [], [], []
    for branch in range(BRANCHES):
        value = "x"
        for layer in range(LAYERS_OF_A_BRANCH):
            name = f"{branch}.{layer}"
            weight = random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(np.sqrt(WIDTH))
            weights.append(numpy_helper.from_array(weight, f"w{name}"))
            nodes.append(helper.make_node("MatMul", [value, f"w{name}"], [f"m{name}"]))
            nodes.append(helper.make_node("Tanh", [f"m{name}"], [f"t{name}"]))
            value = f"t{name}"
        ends.append(value)
    nodes.append(helper.make_node("Sum", ends, ["y"]))
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "branches", shapes[:1], shapes[1:], weights)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "branches.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def counts() -> tuple[int, ...]:
    """Numbers of intra-op threads to compare: 1, 2, 4, ... up to the physical cores, and all logical processors."""
    cpu = machine.describe_cpu()
    physical, logical = cpu["usable_physical_cores"], cpu["usable_logical_cores"]
    doubling = [1 << power for power in range(physical.bit_length()) if 1 << power < physical]
    return tuple(dict.fromkeys([*doubling, physical, logical]))


def affinities(processors: Sequence[int]) -> str:
    """ONNX Runtime's text for one thread on each of the processors, which it counts from 1."""
    return ";".join(str(processor + 1) for processor in processors)


def nodes(root: Path = Path("/sys/devices/system/node")) -> list[list[int]]:
    """The usable processors of each NUMA node that has any."""
    usable = os.sched_getaffinity(0)
    found = []
    for folder in sorted(root.glob("node[0-9]*"), key=lambda folder: int(folder.name[4:])):
        text = (folder / "cpulist").read_text().strip()
        if processors := [one for part in text.split(",") if part for one in _range(part) if one in usable]:
            found.append(processors)
    return found


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def cases(paths: Sequence[Path], release: str, folder: Path, seconds: float, spinning: int | None = None) -> list[Case]:
    """Every setting for the models for which it matters.

    Args:
        paths: the models: one without branches first, then the one with branches, then others for spinning alone.
        release: of ONNX Runtime; settings that it does not know are left out.
        folder: for inputs.
        seconds: of a measurement.
        spinning: of how many of the models the settings of spinning are measured; None: of all.
    """
    first, branches = paths[:2]
    found = []

    def add(model: Path, name: str, **changes: Any) -> None:
        feeds = folder / f"{model.stem}.npz"
        if not feeds.exists():
            write_arrays(feeds, models.sample_inputs(model))
        spec = {
            "model": str(model),
            "feeds": str(feeds),
            "seconds": seconds,
            "sessions": 1,
            "intra_op_num_threads": 0,
            "parallel": False,
            "config_entries": {},
            "global_threads": None,
            **changes,
        }
        found.append(Case(f"{model.stem}: {name}", WORKER, spec, (model,)))

    for model in paths:
        add(model, DEFAULT)
        for name, entries in SPINNING.items() if model in paths[:spinning] else ():
            if all(release_of(SESSION[key]) <= release_of(release) for key in entries):
                add(model, name, config_entries=dict(entries))
    for count in counts():
        add(first, f"{count} threads", intra_op_num_threads=count)
    for model in (first, branches):
        add(model, PARALLEL, parallel=True)
    processors = sorted(os.sched_getaffinity(0))
    threads = machine.describe_cpu()["usable_physical_cores"]
    if threads > 1:
        add(first, FREE, intra_op_num_threads=threads)
        bound = {"session.intra_op_thread_affinities": affinities(processors[1:threads])}
        add(first, BOUND, intra_op_num_threads=threads, config_entries=bound)
    for name, chosen in node_bindings(nodes()).items():
        binding = {"session.intra_op_thread_affinities": affinities(chosen)}
        add(first, name, intra_op_num_threads=NODE_THREADS, config_entries=binding)
    add(first, OWN_POOLS, sessions=SESSIONS, global_threads=0)
    add(first, ONE_POOL, sessions=SESSIONS, global_threads=max(threads, 1))
    return found


def node_bindings(found: Sequence[Sequence[int]]) -> dict[str, list[int]]:
    """The processors of seven threads besides the calling one: on the first node, and split over two as on the page;
    empty where there are not two nodes with so many."""
    others = NODE_THREADS - 1
    if len(found) < 2 or len(found[0]) <= others or len(found[1]) <= others:
        return {}
    here, there = found[0][1:], found[1]
    return {ONE_NODE: list(here[:others]), TWO_NODES: [*here[: others // 2 + 1], *there[: others // 2]]}
