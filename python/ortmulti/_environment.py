"""What ONNX Runtime fixes when its environment is made, or keeps there: global thread pools, log level, telemetry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import SupportsInt

from ortmulti import _core, errors
from ortmulti._checks import boolean, integer, text
from ortmulti.errors import InvalidArgument, InvalidType

__all__ = [
    "GlobalThreadPools",
    "configure",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]

# "1,2;3-4": logical processors from 1 on, or ranges of them, for each thread.
_AFFINITY = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*(;\d+(-\d+)?(,\d+(-\d+)?)*)*")


@dataclass(frozen=True)
class GlobalThreadPools:
    """The thread pools that sessions with ``use_per_session_threads = False`` use together.

    Attributes:
        intra_op_num_threads: Threads within nodes, the calling one included; default 0: as many as the process has
            cores (affinity and control group respected).
        inter_op_num_threads: Threads across nodes with ``ORT_PARALLEL``; default 0, as above.
        allow_spinning: Whether threads without work wait actively for a while; default None: ONNX Runtime's default,
            True.
        intra_op_thread_affinities: The logical processors, counted from 1, of each intra-op thread but the calling one,
            in ONNX Runtime's form ``"1,2;3-4"``; default empty: threads are not bound. ``intra_op_num_threads`` must be
            set to one more than there are of them.
        set_denormal_as_zero: Whether the threads take denormal numbers for zero; default False.

    Raises:
        InvalidArgument, InvalidType: A value that cannot be.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    allow_spinning: bool | None = None
    intra_op_thread_affinities: str = ""
    set_denormal_as_zero: bool = False

    def __post_init__(self) -> None:
        integer("intra_op_num_threads", self.intra_op_num_threads, minimum=0)
        integer("inter_op_num_threads", self.inter_op_num_threads, minimum=0)
        if self.allow_spinning is not None:
            boolean("allow_spinning", self.allow_spinning)
        boolean("set_denormal_as_zero", self.set_denormal_as_zero)
        affinities = text("intra_op_thread_affinities", self.intra_op_thread_affinities)
        if not affinities:
            return
        if not _AFFINITY.fullmatch(affinities):
            raise InvalidArgument(
                f"intra_op_thread_affinities is of the form '1,2;3-4': the processors of each thread, not "
                f"{affinities!r}"
            )
        threads = len(affinities.split(";")) + 1
        if self.intra_op_num_threads != threads:
            raise InvalidArgument(
                f"intra_op_thread_affinities is for {threads - 1} threads besides the calling one: "
                f"intra_op_num_threads is {threads} with it, not {self.intra_op_num_threads}"
            )


def configure(*, global_thread_pools: GlobalThreadPools) -> None:
    """Sets what ONNX Runtime fixes when its environment is made.

    That is done by the first session, value, `RunOptions` or library of custom operators of the process. Sessions have
    threads of their own even so, unless their options have ``use_per_session_threads = False``. The pools stay until
    the process ends. A forked child does not have their threads: sessions that use them raise `ForkError` there.

    Args:
        global_thread_pools: Thread pools for the sessions that have none of their own. Calling it again before the
            environment is made replaces them.

    Raises:
        Fail: The environment is there already.
        InvalidType: No `GlobalThreadPools`.
    """
    if not isinstance(global_thread_pools, GlobalThreadPools):
        raise InvalidType(f"global_thread_pools is an ortmulti.GlobalThreadPools, not {global_thread_pools!r}")
    _core.set_global_thread_pools(
        int(global_thread_pools.intra_op_num_threads),
        int(global_thread_pools.inter_op_num_threads),
        global_thread_pools.allow_spinning,
        global_thread_pools.intra_op_thread_affinities,
        global_thread_pools.set_denormal_as_zero,
    )


def set_global_thread_pool_sizes(intra_op_num_threads: SupportsInt = 0, inter_op_num_threads: SupportsInt = 0) -> None:
    """Has ONNX Runtime make global thread pools of these sizes; see `configure`, which has more options.

    Args:
        intra_op_num_threads: Threads within nodes; default 0: as many as the process has cores.
        inter_op_num_threads: Threads across nodes; default 0, as above.

    Raises:
        Fail: ONNX Runtime's environment is there already; see `configure`.
        InvalidArgument, InvalidType: A negative number, or none.
    """
    intra = integer("intra_op_num_threads", intra_op_num_threads, minimum=0)
    inter = integer("inter_op_num_threads", inter_op_num_threads, minimum=0)
    configure(global_thread_pools=GlobalThreadPools(intra, inter))


def set_default_logger_severity(severity: SupportsInt) -> None:
    """Sets the least severity that ONNX Runtime logs, and that of sessions created from now on which set none.

    Args:
        severity: 0 verbose, 1 info, 2 warning (what it is at first), 3 error, 4 fatal.

    Raises:
        InvalidArgument, InvalidType: Another number, or none.
    """
    level = integer("the default log severity", severity, minimum=0)
    if level > 4:
        raise InvalidArgument(f"the default log severity is 0 to 4, not {level}")
    _core.set_log_severity(level)


def set_default_logger_verbosity(verbosity: SupportsInt) -> None:
    """Only 0 can be set: ONNX Runtime's C API has no call for the default logger's verbosity.

    Sessions and runs have their own, ``log_verbosity_level``.

    Raises:
        NotImplemented: Another number.
        InvalidType: No int.
    """
    if integer("the default log verbosity", verbosity, minimum=-(2**31)) != 0:
        raise errors.NotImplemented(
            "the default log verbosity can only be 0: ONNX Runtime's C API has no call to set it; set "
            "log_verbosity_level of SessionOptions or RunOptions"
        )


def set_seed(seed: SupportsInt) -> None:
    """Not supported: ONNX Runtime's C API has no call for the seed of operators that draw random numbers.

    Raises:
        NotImplemented: Always, for an int.
        InvalidType: No int.
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise InvalidType(f"a seed is an int, not {seed!r}")
    raise errors.NotImplemented(
        "ONNX Runtime's C API has no call to set the seed: give the model's random operators the attribute 'seed'"
    )


def enable_telemetry_events() -> None:
    """Has ONNX Runtime collect telemetry events where the platform has them; on Linux there are none."""
    _core.set_telemetry(True)


def disable_telemetry_events() -> None:
    """Has ONNX Runtime collect no telemetry events; on Linux there are none."""
    _core.set_telemetry(False)
