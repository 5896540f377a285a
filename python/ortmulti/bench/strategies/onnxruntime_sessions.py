"""Sessions of the onnxruntime package, for comparisons: in this process or in another one."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortmulti.bench.strategies.onnxruntime_errors import error_of, translate
from ortmulti.devices.device import Device
from ortmulti.devices.providers import Provider
from ortmulti.errors import DeviceError, InvalidArgument
from ortmulti.interface.patch import import_module
from ortmulti.interface.session_observer import observer

__all__ = ["SessionSpec", "create_session", "open_package"]


@dataclass(frozen=True)
class SessionSpec:
    """All data to create one session. It can be sent to another process.

    Attributes:
        model: An absolute path.
        device: The session's device.
        providers: onnxruntime's providers and their options.
        options: Attributes of onnxruntime's SessionOptions; enumerations as their numbers.
        config_entries: Session configuration entries.
        custom_op_libraries: Paths of shared libraries with custom operators.
    """

    model: str
    device: Device
    providers: Sequence[Provider]
    options: Mapping[str, Any] = field(default_factory=dict)
    config_entries: Mapping[str, str] = field(default_factory=dict)
    custom_op_libraries: Sequence[str] = ()


def open_package(devices: Iterable[Device]) -> Any:
    """Import onnxruntime, which opens its own copy of ONNX Runtime.

    If a device is a GPU, also open the CUDA libraries of the nvidia-* wheels.

    Returns:
        The package, untyped: it has no stubs.

    Raises:
        LibraryError: onnxruntime cannot be imported.
    """
    with observer().opening("import onnxruntime"):
        ort = import_module("onnxruntime")
    observer().opened(ort)
    if any(device.kind == "cuda" for device in devices) and hasattr(ort, "preload_dlls"):
        with observer().opening("open CUDA libraries"):
            ort.preload_dlls()
    return ort


def create_session(ort: Any, spec: SessionSpec) -> Any:
    """Create an onnxruntime.InferenceSession. A session on a GPU is freed at exit before the CUDA driver.

    Args:
        ort: The package, see `open_package`.

    Raises:
        InvalidArgument: This release does not have an option.
        DeviceError: The session ended up without the provider of its device.
        Error: onnxruntime's own error under its name; the message names the model and the device.
    """
    device = str(spec.device)
    try:
        options = _make_options(ort, spec)
        with observer().creating(options, device):
            # Without its fallback, which would hide why CUDA failed behind a session on the CPU.
            session = ort.InferenceSession(spec.model, options, list(spec.providers), enable_fallback=0)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise error_of(*translate(error, f"creating a session of '{spec.model}' on {device}")) from error
    # onnxruntime only warns when a provider cannot be used, and leaves the session on the CPU.
    provider = spec.providers[0][0]
    if provider not in session.get_providers():
        raise DeviceError(
            f"{device}: onnxruntime {ort.__version__} could not use the CUDA provider and put the session on the CPU; "
            f"its build offers {', '.join(ort.get_available_providers())}"
        )
    if device != "cpu":
        _free_on_exit(session)
    observer().created([session], [device])
    return session


def _make_options(ort: Any, spec: SessionSpec) -> Any:
    options = ort.SessionOptions()
    enumerations = {"graph_optimization_level": ort.GraphOptimizationLevel, "execution_mode": ort.ExecutionMode}
    for name, value in spec.options.items():
        if not hasattr(options, name):
            raise InvalidArgument(f"onnxruntime {ort.__version__} has no session option {name}")
        setattr(options, name, enumerations[name](value) if name in enumerations else value)
    for key, value in spec.config_entries.items():
        options.add_session_config_entry(key, value)
    for library in spec.custom_op_libraries:
        with observer().opening("open custom operators"):
            options.register_custom_ops_library(library)
    return options


_on_gpus: weakref.WeakSet[Any] = weakref.WeakSet()


def _free_on_exit(session: Any) -> None:
    """Free the session before the CUDA driver shuts down, if it still exists. Later the process would crash."""
    if not _on_gpus:
        atexit.unregister(_free_sessions)
        atexit.register(_free_sessions)
    _on_gpus.add(session)


def _free_sessions() -> None:
    for session in list(_on_gpus):
        session._sess = None
