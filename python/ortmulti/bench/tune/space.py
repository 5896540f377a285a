"""Settings and their choices: what to try here, and the reasons against other choices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ortmulti import _core
from ortmulti._runtime.libraries import find_onnxruntime
from ortmulti.errors import Error, InvalidArgument
from ortmulti.loading.tuning_options import Scalar, known_to, near, numa_nodes

Options: TypeAlias = tuple[tuple[str, Scalar], ...]
"""Options and their values, in order: a choice of a setting, or choices of several together."""

DEFAULTS: Options = ()


def describe(options: Mapping[str, Scalar]) -> str:
    """Options as a text on one line; none: ``"the defaults"``."""
    return ", ".join(f"{name}={_text(value)}" for name, value in options.items()) or "the defaults"


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Setting:
    """Options that work together, and their choices beside the defaults."""

    name: str
    choices: tuple[Options, ...]


def setting(name: str, *choices: Mapping[str, Scalar]) -> Setting:
    """Return a setting whose choices set these options, without duplicates."""
    return Setting(name, tuple(dict.fromkeys(tuple(choice.items()) for choice in choices)))


def select(settings: Sequence[Setting], only: Sequence[str] | None, skip: Collection[str]) -> tuple[Setting, ...]:
    """Return the settings to try.

    Args:
        settings: All that could be tried.
        only: Names of settings, or of options in them: choices that set other options are left out; None: all.
        skip: Those that are left out.

    Raises:
        InvalidArgument: A name is unknown, or in both `only` and `skip`; or no setting is left.
    """
    names = {one.name for one in settings} | {name for one in settings for choice in one.choices for name, _ in choice}
    for name in [*(only or ()), *skip]:
        if name not in names:
            raise InvalidArgument(f"there is no setting {name!r} to tune here{near(name, names)}")
    if both := sorted(set(only or ()) & set(skip)):
        raise InvalidArgument(f"{', '.join(both)}: in only and in skip, name it in one of them")

    def is_wanted(one: Setting, choice: Options) -> bool:
        options = {name for name, _ in choice}
        return (only is None or one.name in only or options <= set(only)) and not ({one.name} | options) & set(skip)

    wanted = _without_empty(
        Setting(one.name, tuple(choice for choice in one.choices if is_wanted(one, choice))) for one in settings
    )
    if not wanted:
        raise InvalidArgument("no setting is left to be tuned")
    return wanted


def _without_empty(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    return tuple(one for one in settings if one.choices)


Objective: TypeAlias = Literal["latency", "throughput", "creation", "memory"]
Through: TypeAlias = Literal["pool", "session"]

OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "creation", "memory")

_RUNS: tuple[Objective, ...] = ("latency", "throughput")
_STARTS: tuple[Objective, ...] = ("creation", "memory")


@dataclass(frozen=True)
class Host:
    """The facts on which candidates depend.

    Attributes:
        kind: ``"cpu"`` or ``"cuda"``.
        release: ONNX Runtime's, such as ``"1.31.1"``; empty: unknown.
        cores: Number of cores that this process may use.
        nodes: The NUMA nodes whose processors it may use, by number.
        gpu_memory: Bytes that the defaults use on a GPU; None: not known.
    """

    kind: str
    release: str
    cores: int
    nodes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    gpu_memory: int | None = None

    @classmethod
    def here(cls, kind: str, gpu_memory: int | None = None) -> Host:
        """This machine."""
        return cls(kind, find_onnxruntime().version, _core.usable_cores(), numa_nodes(), gpu_memory)


def space(objective: Objective, through: Through, host: Host) -> tuple[Setting, ...]:
    """Return the settings to try for an objective, without options that the release lacks."""
    candidates = [*_graph(objective), *_threads(objective, through, host), *_memory()]
    if host.kind == "cuda":
        candidates += [*_cuda(objective, host), *_streams(objective, through)]
    return _without_empty(
        Setting(
            one.name, tuple(choice for choice in one.choices if all(known_to(host.release, *item) for item in choice))
        )
        for one in candidates
    )


def _graph(objective: Objective) -> Iterator[Setting]:
    levels = ("layout", "extended", "basic", "disabled")
    yield setting("graph_optimization_level", *({"graph_optimization_level": level} for level in levels))
    if objective in _STARTS:
        yield setting("prepacking", {"disable_prepacking": True}, {"parallel_prepacking": True})
        # An arena that holds weights too grows in larger steps.
        yield setting("use_device_allocator_for_initializers", {"use_device_allocator_for_initializers": True})


def _threads(objective: Objective, through: Through, host: Host) -> Iterator[Setting]:
    # These depend on each other, so they are one setting: the best threads of a node may depend on the nodes that run
    # at the same time.
    counts = thread_counts(host.cores) if host.kind == "cpu" else (2, 4)
    choices: list[Mapping[str, Scalar]] = [{"intra_op_num_threads": count} for count in counts]
    if objective in _RUNS:
        for inter, intra in _splits(host.cores):
            choices.append({"execution_mode": "parallel", "inter_op_num_threads": inter, "intra_op_num_threads": intra})
    if objective == "throughput" and through == "pool":
        choices += _sessions(host)
    yield setting("threads", *choices)
    if objective in _RUNS:
        yield setting(
            "spinning",
            {"allow_spinning": False},
            {"spin_duration_us": 1000, "spin_backoff_max": 8},
            {"spin_duration_us": 50},
            {"spin_backoff_max": 8},
        )
        if host.kind == "cpu" and host.cores > 1:
            nodes = sorted(host.nodes) if len(host.nodes) > 1 else []
            yield setting(
                "thread_affinity",
                {"thread_affinity": "cores"},
                *({"thread_affinity": f"node:{node}"} for node in nodes),
            )
    if host.kind == "cpu" and objective != "creation":
        yield setting("global_thread_pools", {"global_thread_pools": True})


def thread_counts(cores: int) -> tuple[int, ...]:
    """Return numbers of threads worth trying beside all cores: one, and halves and powers of two between."""
    counts = {1, cores // 4, cores // 2, 3 * cores // 4}
    power = 2
    while power <= min(cores, 16):
        counts.add(power)
        power *= 2
    return tuple(sorted(count for count in counts if 0 < count < cores))


def _splits(cores: int) -> list[tuple[int, int]]:
    """Return pairs of threads across nodes and within nodes: with the cores as their product, and all cores for
    both.
    """
    found = [(inter, max(1, cores // inter)) for inter in (2, 4, cores // 2, cores) if 1 < inter <= cores]
    return list(dict.fromkeys([*found, (cores, cores)] if cores > 1 else []))


def _sessions(host: Host) -> list[Mapping[str, Scalar]]:
    if host.kind == "cuda":
        return [{"sessions_per_device": count} for count in (2, 4)]
    found: list[Mapping[str, Scalar]] = []
    for count in (2, host.cores // 2, host.cores):
        if 1 < count <= host.cores:
            found.append({"sessions_per_device": count, "intra_op_num_threads": max(1, host.cores // count)})
            found.append({"sessions_per_device": count})
    return found


def _memory() -> Iterator[Setting]:
    yield setting("enable_mem_pattern", {"enable_mem_pattern": False})
    yield setting("enable_cpu_mem_arena", {"enable_cpu_mem_arena": False})


def _cuda(objective: Objective, host: Host) -> Iterator[Setting]:
    yield setting(
        "cudnn_conv_algo_search", {"cudnn_conv_algo_search": "HEURISTIC"}, {"cudnn_conv_algo_search": "DEFAULT"}
    )
    yield setting("cudnn_conv_use_max_workspace", {"cudnn_conv_use_max_workspace": False})
    yield setting("cudnn_conv1d_pad_to_nc1d", {"cudnn_conv1d_pad_to_nc1d": True})
    yield setting("use_tf32", {"use_tf32": False})
    yield setting("prefer_nhwc", {"prefer_nhwc": True})
    yield setting("fuse_conv_bias", {"fuse_conv_bias": True})
    yield setting("arena_extend_strategy", {"arena_extend_strategy": "kSameAsRequested"})
    if objective == "memory" and host.gpu_memory:
        parts: Sequence[int] = (host.gpu_memory * 3 // 4, host.gpu_memory // 2)
        yield setting("gpu_mem_limit", *({"gpu_mem_limit": part} for part in parts))
    if objective == "creation":
        yield setting(
            "external_data_loader_reading_threads",
            *({"external_data_loader_reading_threads": count} for count in (1, 8, 16)),
        )


def _streams(objective: Objective, through: Through) -> Iterator[Setting]:
    if objective not in _RUNS:
        return
    yield setting("do_copy_in_default_stream", {"do_copy_in_default_stream": False})
    yield setting("use_ep_level_unified_stream", {"use_ep_level_unified_stream": True})
    if through == "pool":
        yield setting("cuda_graph", {"cuda_graph": True})
        if objective == "throughput":
            yield setting("in_flight", *({"in_flight": count} for count in (1, 2, 4, 6)))


Why: TypeAlias = Literal["failed", "crashed", "hung", "outputs"]


class RejectedError(Error):
    """A configuration cannot be used.

    Attributes:
        why: ``"failed"``: an error; ``"crashed"``: its process died; ``"hung"``: it took too long; ``"outputs"``: it
            changes the model's outputs by more than the tolerance.
    """

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why
