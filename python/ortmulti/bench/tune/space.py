"""Settings and their choices: what to try here, and the reasons against other choices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from ortmulti import _core
from ortmulti._runtime.libraries import find_onnxruntime
from ortmulti.errors import Error, InvalidArgument
from ortmulti.loading.tuning_options import Scalar, known_to, near, numa_nodes

Options: TypeAlias = tuple[tuple[str, Scalar], ...]
"""Options and their values, in order: a choice of a setting, or choices of several together."""

DEFAULTS: Options = ()


def describe(options: Mapping[str, Scalar]) -> str:
    """Options as a text on one line; none: ``"the defaults"``."""
    texts = (f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items())
    return ", ".join(texts) or "the defaults"


Settings: TypeAlias = Mapping[str, Sequence[Options]]
"""By name: options that work together, as their choices beside the defaults."""


def select(settings: Settings, only: Sequence[str] | None, skip: Collection[str]) -> Settings:
    """Return the settings to try: without those of `skip`; if there is an `only`, its alone.

    Both name settings, or options in them: choices that set options besides those of `only` are left out.
    `InvalidArgument`: a name is unknown, or in both; or no setting is left.
    """
    names = {*settings, *(name for choices in settings.values() for choice in choices for name, _ in choice)}
    for name in [*(only or ()), *skip]:
        if name not in names:
            raise InvalidArgument(f"there is no setting {name!r} to tune here{near(name, names)}")
    if both := sorted(set(only or ()) & set(skip)):
        raise InvalidArgument(f"{', '.join(both)}: in only and in skip, name it in one of them")

    def is_wanted(name: str, choice: Options) -> bool:
        options = {option for option, _ in choice}
        return (only is None or name in only or options <= set(only)) and not ({name} | options) & set(skip)

    if not (wanted := _with_choices(settings, is_wanted)):
        raise InvalidArgument("no setting is left to be tuned")
    return wanted


def _with_choices(settings: Settings, wanted: Callable[[str, Options], bool]) -> Settings:
    """Return the settings with the wanted ones of their choices, those that have any."""
    kept = {name: [choice for choice in choices if wanted(name, choice)] for name, choices in settings.items()}
    return {name: choices for name, choices in kept.items() if choices}


Objective: TypeAlias = Literal["latency", "throughput", "creation", "memory"]
Through: TypeAlias = Literal["pool", "session"]

OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "creation", "memory")


class Host(NamedTuple):
    """The facts on which candidates depend."""

    kind: str  # "cpu" or "cuda"
    release: str  # ONNX Runtime's, such as "1.31.1"; empty: unknown
    cores: int  # that this process may use
    nodes: Collection[int] = ()  # the NUMA nodes whose processors it may use
    gpu_memory: int | None = None  # bytes that the defaults use on a GPU; None: not known

    @classmethod
    def here(cls, kind: str, gpu_memory: int | None = None) -> Host:
        """This machine."""
        return cls(kind, find_onnxruntime().version, _core.usable_cores(), numa_nodes(), gpu_memory)


_SPINNING: Sequence[Mapping[str, Scalar]] = (
    {"allow_spinning": False},
    {"spin_duration_us": 1000, "spin_backoff_max": 8},
    {"spin_duration_us": 50},
    {"spin_backoff_max": 8},
)


def space(objective: Objective, through: Through, host: Host) -> Settings:
    """Return the settings to try for an objective, without options that the release lacks."""
    on_cpu, on_cuda = host.kind == "cpu", host.kind == "cuda"
    runs = objective in ("latency", "throughput")
    nodes = [f"node:{node}" for node in sorted(host.nodes) if len(host.nodes) > 1]
    parts = (host.gpu_memory * 3 // 4, host.gpu_memory // 2) if host.gpu_memory else ()
    # A choice that is no mapping is a value of the option that the setting is named after.
    candidates: Sequence[tuple[bool, str, Iterable[Scalar | Mapping[str, Scalar]]]] = (
        (True, "graph_optimization_level", ("layout", "extended", "basic", "disabled")),
        (not runs, "prepacking", ({"disable_prepacking": True}, {"parallel_prepacking": True})),
        # An arena that holds weights too grows in larger steps.
        (not runs, "use_device_allocator_for_initializers", (True,)),
        (True, "threads", _threads(objective, through, host)),
        (runs, "spinning", _SPINNING),
        (runs and on_cpu and host.cores > 1, "thread_affinity", ("cores", *nodes)),
        (on_cpu and objective != "creation", "global_thread_pools", (True,)),
        (True, "enable_mem_pattern", (not on_cuda,)),
        (True, "enable_cpu_mem_arena", (False,)),
        (on_cuda, "cudnn_conv_algo_search", ("HEURISTIC", "DEFAULT")),
        (on_cuda, "cudnn_conv_use_max_workspace", (False,)),
        (on_cuda, "cudnn_conv1d_pad_to_nc1d", (True,)),
        (on_cuda, "use_tf32", (False,)),
        # In half precision convolutions fuse their bias in this layout alone.
        (on_cuda, "prefer_nhwc", (True, {"prefer_nhwc": True, "fuse_conv_bias": True})),
        (on_cuda, "fuse_conv_bias", (True,)),
        (on_cuda, "arena_extend_strategy", ("kSameAsRequested",)),
        (on_cuda and objective == "memory", "gpu_mem_limit", parts),
        (on_cuda and objective == "creation", "external_data_loader_reading_threads", (1, 8, 16)),
        (on_cuda and runs, "do_copy_in_default_stream", (False,)),
        (on_cuda and runs, "use_ep_level_unified_stream", (True,)),
        (on_cuda and objective != "creation" and through == "pool", "cuda_graph", (False,)),
        (on_cuda and objective == "throughput" and through == "pool", "in_flight", (1, 2, 4, 6)),
    )
    settings = {}
    for condition, name, choices in candidates:
        if condition:
            mappings = (choice if isinstance(choice, Mapping) else {name: choice} for choice in choices)
            settings[name] = list(dict.fromkeys(tuple(mapping.items()) for mapping in mappings))
    return _with_choices(settings, lambda _, choice: all(known_to(host.release, *item) for item in choice))


def _threads(objective: Objective, through: Through, host: Host) -> Iterator[Mapping[str, Scalar]]:
    """Yield numbers of threads, with what depends on them: the best threads of a node may depend on the nodes that run
    at the same time.
    """
    cores = host.cores
    for count in thread_counts(cores) if host.kind == "cpu" else (2, 4):
        yield {"intra_op_num_threads": count}
    if objective in ("latency", "throughput") and cores > 1:
        # Threads across nodes and within nodes: with the cores as their product, and all cores for both.
        splits = [(inter, max(1, cores // inter)) for inter in (2, 4, cores // 2, cores) if 1 < inter <= cores]
        for inter, intra in [*splits, (cores, cores)]:
            yield {"execution_mode": "parallel", "inter_op_num_threads": inter, "intra_op_num_threads": intra}
    if objective == "throughput" and through == "pool":
        for count in (2, cores // 2, cores) if host.kind == "cpu" else (2, 4):
            if host.kind == "cpu" and 1 < count <= cores:
                yield {"sessions_per_device": count, "intra_op_num_threads": max(1, cores // count)}
            if host.kind == "cuda" or 1 < count <= cores:
                yield {"sessions_per_device": count}


def thread_counts(cores: int) -> tuple[int, ...]:
    """Return numbers of threads worth trying beside all cores: one, and halves and powers of two between."""
    counts = {1, cores // 4, cores // 2, 3 * cores // 4, *(power for power in (2, 4, 8, 16) if power <= cores)}
    return tuple(sorted(count for count in counts if 0 < count < cores))


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
