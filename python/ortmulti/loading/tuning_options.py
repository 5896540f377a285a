"""The options that tuning knows: their names, values and places, and the CPUs that threads are bound to."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ortmulti import checks
from ortmulti._runtime.libraries import release_of
from ortmulti._runtime.machine import read_list
from ortmulti.devices.provider_options import CUDA
from ortmulti.devices.provider_options import OPTIONS as PROVIDER_OPTIONS
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options import config_entries
from ortmulti.options.session_options import ExecutionMode, GraphOptimizationLevel

Scalar: TypeAlias = bool | int | str
Where: TypeAlias = Literal["session", "config", "environment", "load", "provider"]

LEVELS = {
    "disabled": GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": GraphOptimizationLevel.ORT_ENABLE_ALL,
}
MODES = {"sequential": ExecutionMode.ORT_SEQUENTIAL, "parallel": ExecutionMode.ORT_PARALLEL}


@dataclass(frozen=True)
class TuningOption:
    """One option.

    Attributes:
        where: ``"session"``: an attribute of `SessionOptions`. ``"config"``: config entries. ``"environment"``: fixed
            with ONNX Runtime's environment. ``"load"``: an argument of `load`. ``"provider"``: an option of the CUDA
            provider.
        kind: The type of its values.
        words: The allowed texts; empty: any.
        keys: Of ``"config"``: the entries that are set.
        minimum: The smallest int.
    """

    where: Where
    kind: type[bool] | type[int] | type[str]
    words: Collection[str] = ()
    keys: tuple[str, ...] = ()
    minimum: int = 0


def _config(kind: type[bool] | type[int] | type[str], *keys: str, minimum: int = 0) -> TuningOption:
    return TuningOption("config", kind, keys=tuple(f"session.{key}" for key in keys), minimum=minimum)


def _of_both_pools(kind: type[bool] | type[int], key: str, minimum: int = 0) -> TuningOption:
    return _config(kind, f"intra_op.{key}", f"inter_op.{key}", minimum=minimum)


def _provider(name: str) -> TuningOption:
    known = PROVIDER_OPTIONS[CUDA][name]
    kind = {"enum": str, "bool": bool, "int": int}[known.kind]
    return TuningOption("provider", kind, known.words, minimum=int(name == "gpu_mem_limit"))


OPTIONS: Mapping[str, TuningOption] = {
    "graph_optimization_level": TuningOption("session", str, LEVELS),
    "execution_mode": TuningOption("session", str, MODES),
    "intra_op_num_threads": TuningOption("session", int),
    "inter_op_num_threads": TuningOption("session", int),
    "enable_mem_pattern": TuningOption("session", bool),
    "enable_cpu_mem_arena": TuningOption("session", bool),
    "allow_spinning": _of_both_pools(bool, "allow_spinning"),
    "spin_duration_us": _of_both_pools(int, "spin_duration_us"),
    "spin_backoff_max": _of_both_pools(int, "spin_backoff_max", 1),
    # "cores": each thread on a core of its own; "node:N": all on that NUMA node.
    "thread_affinity": _config(str, "intra_op_thread_affinities"),
    "disable_prepacking": _config(bool, "disable_prepacking"),
    "parallel_prepacking": _config(bool, "prepack.enable_parallel"),
    "use_device_allocator_for_initializers": _config(bool, "use_device_allocator_for_initializers"),
    "global_thread_pools": TuningOption("environment", bool),
    "sessions_per_device": TuningOption("load", int, minimum=1),
    "in_flight": TuningOption("load", int, minimum=1),
    "cuda_graph": TuningOption("load", bool),
    **{
        name: _provider(name)
        for name in (
            "cudnn_conv_algo_search",
            "cudnn_conv_use_max_workspace",
            "cudnn_conv1d_pad_to_nc1d",
            "use_tf32",
            "prefer_nhwc",
            "fuse_conv_bias",
            "arena_extend_strategy",
            "gpu_mem_limit",
            "do_copy_in_default_stream",
            "use_ep_level_unified_stream",
            "external_data_loader_reading_threads",
        )
    },
}
"""Every option by its name."""


def check(name: object, value: object) -> Scalar:
    """Return the value of an option, as it is kept.

    Raises:
        InvalidArgument, InvalidType: There is no such option, or it does not take the value.
    """
    option = OPTIONS.get(name) if isinstance(name, str) else None
    if option is None:
        raise InvalidArgument(f"there is no setting {name!r}{near(str(name), OPTIONS)}")
    if type(value) is not option.kind:
        raise InvalidType(f"{name} is of type {option.kind.__name__}, not {value!r}")
    assert isinstance(value, (bool, int, str))
    if option.words and value not in option.words:
        raise InvalidArgument(f"{name} is {' or '.join(map(repr, option.words))}, not {value!r}")
    if name == "thread_affinity" and value != "cores" and not str(value).removeprefix("node:").isdecimal():
        raise InvalidArgument(f"{name} is 'cores' or 'node:N', not {value!r}")
    if option.kind is int and int(value) < option.minimum:
        raise InvalidArgument(f"{name} is {option.minimum} or more, not {value}")
    return value


def since(name: str, value: Scalar) -> tuple[int, ...]:
    """Return the first release of ONNX Runtime that has an option with a value; empty if all supported ones do."""
    if (name, value) == ("graph_optimization_level", "layout"):
        return (1, 23)  # found by trying: the others refuse it
    if OPTIONS[name].where == "provider":
        return PROVIDER_OPTIONS[CUDA][name].since or ()
    return max((release_of(config_entries.SESSION[key]) for key in OPTIONS[name].keys), default=())


def known_to(release: str, name: str, value: Scalar) -> bool:
    """Return whether ONNX Runtime of this release has an option with a value; of an unknown release (empty): yes."""
    numbers = release_of(release)
    return not numbers or since(name, value) <= numbers


def near(name: str, names: Mapping[str, Any] | set[str]) -> str:
    """Return a hint for an error: the known name that is nearly the same."""
    return checks.did_you_mean(name, names) or f"; there are {', '.join(sorted(names))}"


NODES = Path("/sys/devices/system/node")


def numa_nodes(folder: Path = NODES) -> dict[int, tuple[int, ...]]:
    """Return the NUMA nodes with processors that this process may use, and these processors."""
    usable = os.sched_getaffinity(0)
    found = {}
    for entry in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        if cpus := read_list(entry / "cpulist") & usable:
            found[int(entry.name[4:])] = tuple(sorted(cpus))
    return found


def affinities(where: str, threads: int) -> str:
    """ONNX Runtime's notation for ``thread_affinity``: the processors, from 1 on, of each thread but the calling one.

    Args:
        where: ``"cores"``: a processor for each thread; ``"node:N"``: all processors of that NUMA node for each.
        threads: How many there are, the calling one included.

    Returns:
        The text; empty for one thread.

    Raises:
        InvalidArgument: There is no such node.
    """
    if threads < 2:
        return ""
    if where == "cores":
        usable = sorted(os.sched_getaffinity(0))
        # The first one is left to the calling thread.
        return ";".join(str(usable[number % len(usable)] + 1) for number in range(1, threads))
    nodes = numa_nodes()
    number = int(where.removeprefix("node:"))
    if number not in nodes:
        raise InvalidArgument(f"there is no NUMA node {number} that this process may use")
    return ";".join([",".join(str(cpu + 1) for cpu in nodes[number])] * (threads - 1))
