"""Sessions of the onnxruntime package, from ortmulti's options."""

from __future__ import annotations

import atexit
import functools
import weakref
from collections.abc import Sequence
from typing import Any

from ortmulti import _core, errors
from ortmulti import providers as _providers
from ortmulti._create.model_additions import replacing_weights
from ortmulti.devices import Device
from ortmulti.errors import DeviceError, InvalidArgument
from ortmulti.options import SessionOptions

__all__ = ["check_additions", "create", "free_on_exit", "make_options", "read_options", "session_class"]

_NAMES = (
    "inter_op_num_threads",
    "log_verbosity_level",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_profiling",
    "use_deterministic_compute",
    "use_per_session_threads",
    "logid",
    "optimized_model_filepath",
    "profile_file_prefix",
)


def check_additions(options: _core.SessionOptions) -> None:
    """Raises `NotImplemented` for what onnxruntime's sessions cannot be given of ours."""
    if options.threads is not None:
        raise errors.NotImplemented(
            "onnxruntime's sessions make their threads themselves: they cannot be given SessionOptions.threads"
        )
    methods = replacing_weights(options)
    if options.custom_op_libraries:
        # It keeps the one table of functions of the ONNX Runtime that has registered it last; here there are two.
        methods = ", ".join([*filter(None, [methods]), "register_custom_ops_library"])
    if methods:
        raise errors.NotImplemented(f"onnxruntime's sessions cannot be given what {methods} has added to the options")


def read_options(options: SessionOptions, device: Device, on_cpu: int) -> dict[str, Any]:
    """What `make_options` needs for one session on ``device``, as values that another process can be sent.

    Args:
        options: Those of all sessions.
        device: The session's.
        on_cpu: How many sessions there are on the CPU altogether.
    """
    core, defaults = options._core, _core.SessionOptions()
    values = {name: getattr(core, name) for name in _NAMES}
    # As the sessions of create_sessions: those on the CPU share the cores, the others need none.
    threads = core.intra_op_num_threads
    if threads == 0:
        threads = max(1, _core.usable_cores() // on_cpu) if device.kind == "cpu" else 1
    return {
        "values": {name: value for name, value in values.items() if value != getattr(defaults, name)},
        "graph_optimization_level": core.graph_optimization_level,
        "execution_mode": core.execution_mode,
        "log_severity_level": core.log_severity_level,
        "intra_op_num_threads": threads,
        "config_entries": dict(core.config_entries),
        "free_dimensions_by_name": list(core.free_dimensions_by_name),
        "free_dimensions_by_denotation": list(core.free_dimensions_by_denotation),
    }


def make_options(ort: Any, given: dict[str, Any]) -> Any:
    """onnxruntime's options, from what `read_options` gave.

    Raises:
        InvalidArgument: This release has no such option.
    """
    converted = ort.SessionOptions()
    converted.graph_optimization_level = ort.GraphOptimizationLevel(given["graph_optimization_level"])
    converted.execution_mode = ort.ExecutionMode(given["execution_mode"])
    for name, value in given["values"].items():
        if not hasattr(converted, name):
            raise InvalidArgument(f"onnxruntime {ort.__version__} has no session option {name}")
        setattr(converted, name, value)
    if given["log_severity_level"] >= 0:
        converted.log_severity_level = given["log_severity_level"]
    converted.intra_op_num_threads = given["intra_op_num_threads"]
    for key, value in given["config_entries"].items():
        converted.add_session_config_entry(key, value)
    for name, size in given["free_dimensions_by_name"]:
        converted.add_free_dimension_override_by_name(name, size)
    for denotation, size in given["free_dimensions_by_denotation"]:
        converted.add_free_dimension_override_by_denotation(denotation, size)
    return converted


def create(
    ort: Any,
    model: str | bytes,
    options: Any,
    device: Device | str,
    providers: Sequence[_providers.Provider],
    weights: Any = None,
) -> Any:
    """An onnxruntime.InferenceSession, freed at exit before the CUDA driver is.

    Args:
        weights: What must live as long as the session.

    Raises:
        DeviceError: It ended up without the provider that was asked for.
        Exception: onnxruntime's own.
    """
    session = session_class(ort)(model, options, list(providers), weights)
    # onnxruntime only warns when a provider cannot be used, and leaves the session on the CPU.
    if providers[0][0] not in session.get_providers():
        raise DeviceError(f"{device}: onnxruntime could not use {providers[0][0]} and put the session on the CPU")
    if str(device) != "cpu":
        free_on_exit(session)
    return session


@functools.cache
def session_class(ort: Any) -> Any:
    class InferenceSession(ort.InferenceSession):  # type: ignore[misc]
        """onnxruntime's, over weights that it keeps."""

        def __init__(self, model: str | bytes, options: Any, providers: list[Any], weights: Any) -> None:
            # Without its fallback, which would hide why CUDA failed behind a session on the CPU.
            super().__init__(model, options, providers=providers, enable_fallback=0)
            self._ortmulti_weights = weights  # set last, and so released after what ONNX Runtime made over them

    InferenceSession.__module__, InferenceSession.__qualname__ = __name__, "InferenceSession"
    return InferenceSession


_on_gpus: weakref.WeakSet[Any] = weakref.WeakSet()


def free_on_exit(session: Any) -> None:
    """Frees the session before the CUDA driver shuts down, if it is still there then: afterwards it would crash."""
    if not _on_gpus:
        atexit.unregister(_free_sessions)
        atexit.register(_free_sessions)
    _on_gpus.add(session)


def _free_sessions() -> None:
    for session in list(_on_gpus):
        session._sess = None
        session._ortmulti_weights = None
