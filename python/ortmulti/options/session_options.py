"""Options of sessions and runs, under onnxruntime's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Never, Self, SupportsInt, TypeVar, overload

from ortmulti import _core, errors
from ortmulti import checks as _checks
from ortmulti._runtime import startup
from ortmulti._runtime.closing import stays_here
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options import config_entries
from ortmulti.options.model_additions import ModelAdditions

if TYPE_CHECKING:
    from ortmulti._core import OrtEpDevice
    from ortmulti.options.threads import Threads

__all__ = ["ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions"]


class GraphOptimizationLevel(int, Enum):
    """How much ONNX Runtime optimizes a graph before it runs."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(int, Enum):
    """Whether independent nodes of a graph may run at the same time."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(int, Enum):
    """The order in which nodes run. Only `DEFAULT` can be set: ONNX Runtime's C API has no call for the others."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


# ONNX Runtime's own limits.
_MAX_KEY = 1024
_MAX_VALUE = 8192
_MIN_SIZE = -(2**31)


_Value = TypeVar("_Value")
_Given = TypeVar("_Given")


class _Setting(Generic[_Value, _Given]):
    """An attribute of options: ``_Value`` when it is read, ``_Given`` when it is set.

    Args:
        check: A function of `ortmulti.checks`, called with the attribute's name, the value and ``rules``.
        only: The only value that can be set, where ONNX Runtime's C API has no call. Default None: the core keeps it.
    """

    def __init__(self, check: Callable[..., _Value], *rules: Any, only: _Value | None = None) -> None:
        self._check, self._rules, self.only = check, rules, only

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, options: None, owner: type) -> Self: ...
    @overload
    def __get__(self, options: Any, owner: type | None = None) -> _Value: ...
    def __get__(self, options: Any, owner: type | None = None) -> Self | _Value:
        if options is None:
            return self
        if self.only is not None:
            return self.only
        # The check makes the core's number a member of its enumeration.
        return self._check(self._name, getattr(options._core, self._name), *self._rules)

    def __set__(self, options: Any, given: _Given) -> None:
        value = self._check(self._name, given, *self._rules)
        if self.only is None:
            setattr(options._core, self._name, value)
        elif value is not self.only:
            only, call = getattr(self.only, "name", self.only), "unset" if self.only is True else "set"
            raise errors.NotImplemented(
                f"{self._name} can only be {only}: ONNX Runtime's C API has no call to {call} it"
            )


class SessionOptions(ModelAdditions):
    """Options for creating sessions, with onnxruntime's names and defaults.

    Attributes:
        intra_op_num_threads (int): Threads within a node. Default 0: CPU sessions that are created together share the
            usable cores (affinity and control group respected). Sessions on a GPU get 1.
        inter_op_num_threads (int): Threads across nodes with ``ORT_PARALLEL``; default 0, as above.
        graph_optimization_level (GraphOptimizationLevel): How much the graph is optimized; default ``ORT_ENABLE_ALL``.
        execution_mode (ExecutionMode): Whether independent nodes may run at the same time; default ``ORT_SEQUENTIAL``.
        execution_order (ExecutionOrder): The order of the nodes; only ``DEFAULT`` can be set.
        log_severity_level (int): 0 verbose to 4 fatal; default -1: warnings and worse (2).
        log_verbosity_level (int): Detail of verbose messages; default 0.
        logid (str): Name of the session in log records; default empty: its model's path or URL.
        enable_cpu_mem_arena (bool): Keep freed CPU memory for the next run; default True.
        enable_mem_pattern (bool | None): Plan memory once for inputs of the same shapes. ONNX Runtime keeps each plan
            until the session is closed. Default None: on GPUs and with other providers, but not on the CPU, where runs
            are as fast without plans.
        enable_mem_reuse (bool): Only True can be set: ONNX Runtime's C API has no call for it.
        enable_profiling (bool): Write a profile, from creation to `InferenceSession.end_profiling`; default False.
        profile_file_prefix (str): First part of the profile's file name; default ``"onnxruntime_profile_"``.
        optimized_model_filepath (str): Where to write the optimized model; default empty: nowhere.
        use_deterministic_compute (bool): Prefer kernels that give the same bits each time; default False.
        use_per_session_threads (bool): Whether each session has its own threads; default True. With False, sessions use
            the global thread pools of `configure` or `set_global_thread_pool_sizes`.
        threads: How ortmulti makes the threads of the session's own pools; default None: ONNX Runtime makes them. A
            session on a GPU has such threads only if ``intra_op_num_threads`` is set.

    Setting an attribute to a wrong value raises `InvalidArgument` or `InvalidType` at once. An unknown name raises
    AttributeError.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers would take it for leave to set any attribute

        def __setattr__(self, name: str, value: object) -> None:
            if not hasattr(type(self), name):
                known = [one for one in dir(type(self)) if not one.startswith("_")]
                raise AttributeError(f"SessionOptions has no option {name!r}{_checks.did_you_mean(name, known)}")
            super().__setattr__(name, value)

    def __reduce__(self) -> Never:
        # A copy would share the state, and a pickle cannot hold values and libraries.
        raise TypeError("SessionOptions cannot be copied or pickled: make new ones")

    intra_op_num_threads = _Setting[int, SupportsInt](_checks.integer, 0)
    inter_op_num_threads = _Setting[int, SupportsInt](_checks.integer, 0)
    graph_optimization_level = _Setting[GraphOptimizationLevel, SupportsInt](_checks.member, GraphOptimizationLevel)
    execution_mode = _Setting[ExecutionMode, SupportsInt](_checks.member, ExecutionMode)
    execution_order = _Setting[ExecutionOrder, SupportsInt](_checks.member, ExecutionOrder, only=ExecutionOrder.DEFAULT)
    log_severity_level = _Setting[int, SupportsInt](_checks.integer, -1, 4)
    log_verbosity_level = _Setting[int, SupportsInt](_checks.integer, 0)
    logid = _Setting[str, str](_checks.text)
    enable_cpu_mem_arena = _Setting[bool, bool](_checks.boolean)
    enable_mem_pattern = _Setting[bool | None, bool | None](_checks.boolean_or_none)
    enable_mem_reuse = _Setting[bool, bool](_checks.boolean, only=True)
    enable_profiling = _Setting[bool, bool](_checks.boolean)
    profile_file_prefix = _Setting[str, str](_checks.text)
    optimized_model_filepath = _Setting[str, str | os.PathLike[str]](_checks.text)
    use_deterministic_compute = _Setting[bool, bool](_checks.boolean)
    use_per_session_threads = _Setting[bool, bool](_checks.boolean)

    @property
    def threads(self) -> Threads | None:
        core = self._core.threads
        if core is None:
            return None
        from ortmulti.options.threads import Threads

        return Threads._from_core(core)

    @threads.setter
    def threads(self, value: Threads | None) -> None:
        from ortmulti.options.threads import Threads

        _checks.instance("threads", value, Threads, optional=True)
        self._core.threads = None if value is None else value._to_core()

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry, such as ``session.intra_op.allow_spinning``; the last value counts.

        Unknown keys are accepted: providers and custom operators have keys of their own.

        Raises:
            InvalidArgument: ``key`` is empty or longer than 1,024 characters, or ``value`` than 8,192; or ONNX Runtime
                defines the key, and ``value`` is not allowed. If the installed release is too old for the key, creating
                a session raises this error; the message names the first release with the key.
        """
        key, value = _checks.text("the key of a config entry", key), _checks.text("the value of a config entry", value)
        if not 0 < len(key) <= _MAX_KEY:
            raise InvalidArgument(f"the key of a config entry has 1 to {_MAX_KEY} characters, not {len(key)}")
        if len(value) > _MAX_VALUE:
            raise InvalidArgument(f"the value of config entry {key!r} has at most {_MAX_VALUE} characters")
        config_entries.check_session_entry(key, value)
        self._core.config_entries = {**self._core.config_entries, key: value}

    def get_session_config_entry(self, key: str) -> str:
        """Return the value of a configuration entry.

        Raises:
            InvalidArgument: There is no such entry.
        """
        entries = self._core.config_entries
        if key not in entries:
            raise InvalidArgument(f"SessionOptions does not have configuration with key: {key}")
        return entries[key]

    def add_provider_for_devices(self, ep_devices: Sequence[OrtEpDevice], provider_options: Mapping[str, str]) -> None:
        """Add the execution provider of these devices, before the CPU's and those added later.

        Args:
            ep_devices: One or more devices of one provider, from `get_ep_devices`.
            provider_options: Options of the provider, all text.

        Raises:
            InvalidArgument: There is no device, or they belong to several providers.
            InvalidType: They are not such devices, or the options not text.
        """
        devices = _checks.sequence("ep_devices", ep_devices)
        for device in devices:
            if not isinstance(device, _core.OrtEpDevice):
                raise InvalidType(f"ep_devices holds devices of get_ep_devices(), not {device!r}")
        if not devices:
            raise InvalidArgument("ep_devices is empty: give one or more devices of get_ep_devices()")
        if len(names := list(dict.fromkeys(device.ep_name for device in devices))) > 1:
            raise InvalidArgument(f"ep_devices are of several providers ({', '.join(names)}): add each by a call")
        values: Any = provider_options
        if not isinstance(values, Mapping) or not all(
            isinstance(text, str) for pair in values.items() for text in pair
        ):
            raise InvalidType(f"provider_options is a dict of str, not {values!r}")
        changed = self._core.copy()
        changed.add_provider(devices, dict(values))
        self._core = changed

    def has_providers(self) -> bool:
        """Return whether `add_provider_for_devices` has added a provider."""
        return bool(self._core.providers)

    def add_free_dimension_override_by_name(self, name: str, size: SupportsInt) -> None:
        """Fix the open dimension ``name`` of the model's inputs to ``size``; a negative size leaves it open."""
        entry = (
            _checks.text("the name of a dimension", name),
            _checks.integer(f"the size of dimension {name!r}", size, _MIN_SIZE),
        )
        self._core.free_dimensions_by_name = [*self._core.free_dimensions_by_name, entry]

    def add_free_dimension_override_by_denotation(self, denotation: str, size: SupportsInt) -> None:
        """Fix the open dimensions with this denotation of the model's inputs to ``size``, as above."""
        entry = (
            _checks.text("a denotation", denotation),
            _checks.integer(f"the size of {denotation!r}", size, _MIN_SIZE),
        )
        self._core.free_dimensions_by_denotation = [*self._core.free_dimensions_by_denotation, entry]


SETTINGS = tuple(name for name, one in vars(SessionOptions).items() if isinstance(one, _Setting) and one.only is None)
"""The options that are attributes of the core's too, all numbers, flags and texts."""


class RunOptions(_core.RunOptions):
    """Options of one run, with onnxruntime's names and defaults.

    A run keeps the options with which it was requested. A later change reaches later runs only, except `terminate`.

    Attributes:
        log_severity_level: 0 verbose to 4 fatal; default -1: the session's.
        log_verbosity_level: Detail of verbose messages; default 0.
        logid: Name of the run in log records; default empty.
        terminate: Set to True, from any thread, to end the runs that use this object with an error; default False.
        only_execute_path_to_fetches (bool): Only False can be set: ONNX Runtime's C API has no call for it.

    Raises:
        LibraryError: No ONNX Runtime is installed.
    """

    __slots__ = ()
    __reduce__ = stays_here("make another one there")

    only_execute_path_to_fetches = _Setting[bool, bool](_checks.boolean, only=False)

    def __init__(self) -> None:
        startup.ensure_open()
        super().__init__()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry, such as ``memory.enable_memory_arena_shrinkage``; the last value counts.

        Keys that ONNX Runtime does not define are accepted.

        Raises:
            InvalidArgument: ONNX Runtime defines the key, and ``value`` is not allowed.
            InvalidType: The key or the value is not a str.
        """
        key, value = _checks.text("the key of a config entry", key), _checks.text("the value of a config entry", value)
        config_entries.check_run_entry(key, value)
        super().add_run_config_entry(key, value)
