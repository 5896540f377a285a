"""Settings of ONNX Runtime's environment: thread pools, arenas, log level, telemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import SupportsInt

from ortmulti import _core, checks, errors
from ortmulti._runtime import log
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options.arena import ArenaConfig
from ortmulti.options.arena import to_core as arenas_to_core
from ortmulti.options.threads import Threads

__all__ = [
    "GlobalThreadPools",
    "configure",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]


@dataclass(frozen=True)
class GlobalThreadPools:
    """The thread pools that sessions with ``use_per_session_threads = False`` use together.

    Attributes:
        intra_op_num_threads: Threads within nodes, including the calling one; default 0: one for each core that the
            process may use (affinity and control group respected).
        inter_op_num_threads: Threads across nodes with ``ORT_PARALLEL``; default 0, as above.
        allow_spinning: Whether threads without work spin for a while before they sleep; default None: ONNX Runtime's
            default, True. The spinning time can only be set for sessions with threads of their own, up to 1.31 (config
            entries ``session.intra_op.spin_duration_us`` and ``spin_backoff_max``).
        intra_op_thread_affinities: The logical processors, counted from 1, of each intra-op thread except the calling
            one, in ONNX Runtime's form ``"1,2;3-4"``; default empty: threads are not bound. Set
            ``intra_op_num_threads`` to the number of these threads plus 1.
        set_denormal_as_zero: Whether the threads treat denormal numbers as zero; default False.
        threads: How ortmulti makes and binds the threads; default None: ONNX Runtime makes them.

    Raises:
        InvalidArgument, InvalidType: A value is not valid.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    allow_spinning: bool | None = None
    intra_op_thread_affinities: str = ""
    set_denormal_as_zero: bool = False
    threads: Threads | None = None

    def __post_init__(self) -> None:
        checks.integer("intra_op_num_threads", self.intra_op_num_threads, minimum=0)
        checks.integer("inter_op_num_threads", self.inter_op_num_threads, minimum=0)
        if self.allow_spinning is not None:
            checks.boolean("allow_spinning", self.allow_spinning)
        checks.boolean("set_denormal_as_zero", self.set_denormal_as_zero)
        affinities = checks.text("intra_op_thread_affinities", self.intra_op_thread_affinities)
        if affinities:
            checks.affinities("intra_op_thread_affinities", affinities, self.intra_op_num_threads)
        checks.instance("threads", self.threads, Threads, optional=True)
        if self.threads is None:
            return
        if self.threads.numa_node == "near":
            raise InvalidArgument("the global thread pools belong to no GPU: numa_node is a node's number, or None")
        if affinities:
            raise InvalidArgument(
                "intra_op_thread_affinities binds only threads that ONNX Runtime makes, and with threads the core "
                "makes them: set the CPUs in ortmulti.Threads"
            )


def configure(
    *,
    global_thread_pools: GlobalThreadPools | None = None,
    arena: ArenaConfig | Mapping[str, ArenaConfig] | None = None,
) -> None:
    """Set global thread pools and shared arenas, before ONNX Runtime's environment is made.

    The first session, value, `RunOptions` or library of custom operators of the process makes the environment. Until
    then you may call this again: an argument replaces the earlier one, None keeps it.

    Args:
        global_thread_pools: Thread pools for the sessions with ``use_per_session_threads = False``. They stay until the
            process ends. A forked child does not have their threads: sessions that use them raise `ForkError` there.
        arena: An arena that sessions of a device share if their config entry ``session.use_env_allocators`` is
            ``"1"``. One configuration gives every device an arena of its own. A dict is for the devices that it names
            (``"cpu"``, ``"cuda:0"``). The CPU's arena is made with the environment, a GPU's by the first such session
            there. Arenas stay until the process ends, and a closed session's memory goes back to its arena. The run
            option ``memory.enable_memory_arena_shrinkage`` returns an arena's free memory to the system.

    Raises:
        Fail: The environment exists already.
        InvalidType: An argument is no `GlobalThreadPools` or no `ArenaConfig`.
        InvalidArgument: Nothing was given, or a device has an unknown name.
    """
    if global_thread_pools is None and arena is None:
        raise InvalidArgument("configure was given nothing: global_thread_pools, arena, or both")
    checks.instance("global_thread_pools", global_thread_pools, GlobalThreadPools, optional=True)
    arenas = None if arena is None else arenas_to_core(arena)
    if global_thread_pools is not None:
        threads = global_thread_pools.threads
        _core.set_global_thread_pools(
            int(global_thread_pools.intra_op_num_threads),
            int(global_thread_pools.inter_op_num_threads),
            global_thread_pools.allow_spinning,
            global_thread_pools.intra_op_thread_affinities,
            global_thread_pools.set_denormal_as_zero,
            None if threads is None else threads._to_core(),
        )
    if arenas is not None:
        _core.set_arenas(arenas)


def set_global_thread_pool_sizes(intra_op_num_threads: SupportsInt = 0, inter_op_num_threads: SupportsInt = 0) -> None:
    """Have ONNX Runtime make global thread pools of these sizes; see `configure`, which has more options.

    Args:
        intra_op_num_threads: Threads within nodes; default 0: as many as the process has cores.
        inter_op_num_threads: Threads across nodes; default 0, as above.

    Raises:
        Fail: ONNX Runtime's environment exists already; see `configure`.
        InvalidArgument, InvalidType: A number is negative, or not an int.
    """
    intra = checks.integer("intra_op_num_threads", intra_op_num_threads, minimum=0)
    inter = checks.integer("inter_op_num_threads", inter_op_num_threads, minimum=0)
    configure(global_thread_pools=GlobalThreadPools(intra, inter))


def set_default_logger_severity(severity: SupportsInt) -> None:
    """Set the lowest severity that ONNX Runtime logs. Sessions created later use it unless they set their own.

    Args:
        severity: 0 verbose, 1 info, 2 warning (the initial one), 3 error, 4 fatal.

    Raises:
        InvalidArgument, InvalidType: The severity is another number, or not an int.
    """
    _core.set_log_severity(_severity(severity))


def set_default_logger_callback(
    callback: Callable[[int, str, str, str, str], object] | None, severity: SupportsInt = 2
) -> None:
    """Send ONNX Runtime's log messages to a function, instead of Python's logger ``ortmulti.onnxruntime``.

    A thread of ortmulti calls it, or the thread that has just created a session. Threads of ONNX Runtime never do.
    Calls come one after another. If the function raises, the logger ``ortmulti`` gets the exception, and the usual
    logger gets the message. A forked child keeps the function.

    Args:
        callback: Called with the severity (0 verbose to 4 fatal), the category, the logid, the place in ONNX Runtime's
            code, and the message. None: messages go to the logger again, and the severity stays.
        severity: As in `set_default_logger_severity`; default 2: warnings and worse.

    Raises:
        InvalidArgument, InvalidType: The callback cannot be called, or the severity is not an int from 0 to 4.
    """
    if callback is not None and not callable(callback):
        raise InvalidType(f"callback is a function of five arguments, or None, not {callback!r}")
    level = _severity(severity)
    log.set_callback(callback)
    if callback is not None:
        _core.set_log_severity(level)


def _severity(value: SupportsInt) -> int:
    return checks.integer("the default log severity", value, 0, 4)


def set_default_logger_verbosity(verbosity: SupportsInt) -> None:
    """Accept 0 only: ONNX Runtime's C API has no call for the default logger's verbosity.

    Sessions and runs have their own, ``log_verbosity_level``.

    Raises:
        NotImplemented: The number is not 0.
        InvalidType: It is not an int.
    """
    if checks.integer("the default log verbosity", verbosity) != 0:
        raise errors.NotImplemented(
            "the default log verbosity can only be 0: ONNX Runtime's C API has no call to set it; set "
            "log_verbosity_level of SessionOptions or RunOptions"
        )


def set_seed(seed: SupportsInt) -> None:
    """Raise an error: ONNX Runtime's C API has no call for the seed of operators that draw random numbers.

    Raises:
        NotImplemented: Always, for an int.
        InvalidType: The seed is not an int.
    """
    checks.integer("a seed", seed)
    raise errors.NotImplemented(
        "ONNX Runtime's C API has no call to set the seed: give the model's random operators the attribute 'seed'"
    )


def enable_telemetry_events() -> None:
    """Have ONNX Runtime collect telemetry events where the platform has them; on Linux there are none."""
    _core.set_telemetry(True)


def disable_telemetry_events() -> None:
    """Have ONNX Runtime collect no telemetry events; on Linux there are none."""
    _core.set_telemetry(False)
