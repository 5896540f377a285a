"""The options that tuning knows: their names, values and places, and the CPUs that threads are bound to."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
        name: Its name in files and on the command line.
        where: ``"session"``: an attribute of `SessionOptions`. ``"config"``: config entries. ``"environment"``: fixed
            with ONNX Runtime's environment. ``"load"``: an argument of `load`. ``"provider"``: an option of the CUDA
            provider.
        kind: The type of its values.
        words: The allowed texts; empty: any.
        keys: Of ``"config"``: the entries that are set.
        minimum: The smallest int.
    """

    name: str
    where: Where
    kind: type[bool] | type[int] | type[str]
    words: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    minimum: int = 0

    def since(self) -> tuple[int, ...]:
        """Return the first release of ONNX Runtime with the option; empty if all supported ones have it."""
        if self.where == "provider":
            return PROVIDER_OPTIONS[CUDA][self.name].since or ()
        return max((release_of(config_entries.SESSION[key]) for key in self.keys), default=())


def _of_both_pools(key: str) -> tuple[str, ...]:
    return (f"session.intra_op.{key}", f"session.inter_op.{key}")


_PROVIDER = (
    TuningOption("cudnn_conv_algo_search", "provider", str, PROVIDER_OPTIONS[CUDA]["cudnn_conv_algo_search"].words),
    TuningOption("cudnn_conv_use_max_workspace", "provider", bool),
    TuningOption("cudnn_conv1d_pad_to_nc1d", "provider", bool),
    TuningOption("use_tf32", "provider", bool),
    TuningOption("prefer_nhwc", "provider", bool),
    TuningOption("fuse_conv_bias", "provider", bool),
    TuningOption("arena_extend_strategy", "provider", str, PROVIDER_OPTIONS[CUDA]["arena_extend_strategy"].words),
    TuningOption("gpu_mem_limit", "provider", int, minimum=1),
    TuningOption("do_copy_in_default_stream", "provider", bool),
    TuningOption("use_ep_level_unified_stream", "provider", bool),
    TuningOption("external_data_loader_reading_threads", "provider", int),
)

OPTIONS: Mapping[str, TuningOption] = {
    option.name: option
    for option in (
        TuningOption("graph_optimization_level", "session", str, tuple(LEVELS)),
        TuningOption("execution_mode", "session", str, tuple(MODES)),
        TuningOption("intra_op_num_threads", "session", int),
        TuningOption("inter_op_num_threads", "session", int),
        TuningOption("enable_mem_pattern", "session", bool),
        TuningOption("enable_cpu_mem_arena", "session", bool),
        TuningOption("allow_spinning", "config", bool, keys=_of_both_pools("allow_spinning")),
        TuningOption("spin_duration_us", "config", int, keys=_of_both_pools("spin_duration_us")),
        TuningOption("spin_backoff_max", "config", int, keys=_of_both_pools("spin_backoff_max"), minimum=1),
        # "cores": each thread on a core of its own; "node:N": all on that NUMA node.
        TuningOption("thread_affinity", "config", str, keys=("session.intra_op_thread_affinities",)),
        TuningOption("disable_prepacking", "config", bool, keys=("session.disable_prepacking",)),
        TuningOption("parallel_prepacking", "config", bool, keys=("session.prepack.enable_parallel",)),
        TuningOption(
            "use_device_allocator_for_initializers",
            "config",
            bool,
            keys=("session.use_device_allocator_for_initializers",),
        ),
        TuningOption("global_thread_pools", "environment", bool),
        TuningOption("sessions_per_device", "load", int, minimum=1),
        TuningOption("in_flight", "load", int, minimum=1),
        TuningOption("cuda_graph", "load", bool),
        *_PROVIDER,
    )
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
    if isinstance(value, str):
        if option.words and value not in option.words:
            raise InvalidArgument(f"{name} is {' or '.join(map(repr, option.words))}, not {value!r}")
        if name == "thread_affinity" and value != "cores" and not value.removeprefix("node:").isdecimal():
            raise InvalidArgument(f"{name} is 'cores' or 'node:N', not {value!r}")
        return value
    assert isinstance(value, int)
    if not isinstance(value, bool) and value < option.minimum:
        raise InvalidArgument(f"{name} is {option.minimum} or more, not {value}")
    return value


def since(name: str, value: Scalar) -> tuple[int, ...]:
    """Return the first release of ONNX Runtime that has an option with a value, as `TuningOption.since`."""
    return max(OPTIONS[name].since(), _VALUES_SINCE.get((name, value), ()))


def known_to(release: str, name: str, value: Scalar) -> bool:
    """Return whether ONNX Runtime of this release has an option with a value; of an unknown release (empty): yes."""
    numbers = release_of(release)
    return not numbers or since(name, value) <= numbers


# Found by trying: the others refuse it.
_VALUES_SINCE: Mapping[tuple[str, Scalar], tuple[int, ...]] = {("graph_optimization_level", "layout"): (1, 23)}


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


def affinities(where: str, threads: int, nodes: dict[int, tuple[int, ...]] | None = None) -> str:
    """ONNX Runtime's notation for ``thread_affinity``: the processors, from 1 on, of each thread but the calling one.

    Args:
        where: ``"cores"``: a processor for each thread; ``"node:N"``: all processors of that NUMA node for each.
        threads: How many there are, the calling one included.
        nodes: The NUMA nodes; default: this machine's.

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
    nodes = numa_nodes() if nodes is None else nodes
    number = int(where.removeprefix("node:"))
    if number not in nodes:
        raise InvalidArgument(f"there is no NUMA node {number} that this process may use")
    return ";".join([",".join(str(cpu + 1) for cpu in nodes[number])] * (threads - 1))
