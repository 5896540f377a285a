"""Settings put into what sessions and pools are created with; what the caller gave himself stays."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortmulti import _core
from ortmulti._create.config_entries import AFFINITIES, ENV_ALLOCATORS
from ortmulti._create.creation import core_options
from ortmulti._create.tuning_options import LEVELS, MODES, OPTIONS, Scalar
from ortmulti._create.tuning_threads import affinities
from ortmulti._runtime.environment import GlobalThreadPools, configure
from ortmulti.errors import Fail
from ortmulti.options import SessionOptions

_OF_ARENAS = ("enable_cpu_mem_arena", "gpu_mem_limit", "arena_extend_strategy")

LOAD_DEFAULTS: Mapping[str, Scalar] = {"sessions_per_device": 1, "in_flight": 3, "cuda_graph": False}
"""The defaults of `load`'s arguments: one that is not given, or given as that, is taken from the settings."""

# The pools that settings have asked for, which later sessions of the process can use, too.
_pools: list[GlobalThreadPools] = []
_pools_lock = threading.Lock()


@dataclass(frozen=True)
class Applied:
    """What to create sessions with.

    Attributes:
        options: Session options; the caller's object is left as it was.
        provider_options: Of the CUDA provider.
        load: Arguments of `load`, all of `LOAD_DEFAULTS`.
        left_out: Settings that could not be used in this process, with why.
    """

    options: SessionOptions
    provider_options: dict[str, Any]
    load: dict[str, Any]
    left_out: tuple[str, ...] = ()


def apply(
    settings: Mapping[str, Scalar],
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
) -> Applied:
    """Joins settings with what the caller gave: his win, which is what differs from the defaults.

    Args:
        settings: Options of `ortmulti._create.tuning_options` and their values.
        options: The caller's session options.
        provider_options: The caller's options of the CUDA provider.
        load: The caller's arguments of `load`, of those in `LOAD_DEFAULTS`.

    Raises:
        InvalidArgument: Settings that this machine cannot have.
    """
    result = SessionOptions()
    defaults = result._core
    given = core_options(options)
    result._core = given.copy()
    if given.config_entries.get(ENV_ALLOCATORS) == "1":
        # The arenas are the environment's, as the caller wants them.
        settings = {name: value for name, value in settings.items() if name not in _OF_ARENAS}
    for name, value in settings.items():
        if OPTIONS[name].where == "session" and getattr(given, name) == getattr(defaults, name):
            setattr(result, name, _converted(name, value))
    for name, value in settings.items():
        if OPTIONS[name].where == "config" and name != "thread_affinity":
            for key in OPTIONS[name].keys:
                if key not in given.config_entries:
                    result.add_session_config_entry(key, str(int(value)))
    left_out = []
    if given.threads is None and AFFINITIES not in given.config_entries and given.use_per_session_threads:
        bound = _bound(result, str(settings.get("thread_affinity", "")))
        if settings.get("global_thread_pools"):
            reason = _use_global_pools(result, bound)
            left_out += [f"global_thread_pools: {reason}"] if reason else []
        if bound and result.use_per_session_threads:
            result.add_session_config_entry(AFFINITIES, bound)
    provider = {name: value for name, value in settings.items() if OPTIONS[name].where == "provider"}
    arguments: dict[str, Any] = {**LOAD_DEFAULTS, **(load or {})}
    for name, default in LOAD_DEFAULTS.items():
        if name in settings and arguments[name] == default:
            arguments[name] = settings[name]
    return Applied(result, {**provider, **(provider_options or {})}, arguments, tuple(left_out))


def _converted(name: str, value: Scalar) -> Any:
    words: Mapping[str, Mapping[str, Any]] = {"graph_optimization_level": LEVELS, "execution_mode": MODES}
    return words[name][str(value)] if name in words else value


def _bound(options: SessionOptions, where: str) -> str:
    """The affinities of the session's threads, whose number is then set."""
    # ONNX Runtime wants to know how many threads there are where it is told where they run.
    threads = options.intra_op_num_threads or _core.usable_cores()
    text = affinities(where, threads) if where else ""
    if text:
        options.intra_op_num_threads = threads
    return text


def _use_global_pools(options: SessionOptions, bound: str) -> str | None:
    """Has the session use the process's thread pools; returns why not, if it cannot."""
    entries = options._core.config_entries
    spinning = entries.get("session.intra_op.allow_spinning")
    wanted = GlobalThreadPools(
        options.intra_op_num_threads,
        options.inter_op_num_threads,
        None if spinning is None else spinning == "1",
        bound,
    )
    with _pools_lock:
        if wanted not in _pools:
            try:
                if _core.has_environment():
                    return "ONNX Runtime's environment is there already; load this model first"
                configure(global_thread_pools=wanted)
            except Fail as error:
                return str(error)
            _pools[:] = [wanted]
    options.use_per_session_threads = False
    return None
