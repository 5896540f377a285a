"""Sessions of the onnxruntime package: the only place that creates them, in this process or in a worker's."""

from __future__ import annotations

import atexit
import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmulti import _core, checks, errors
from ortmulti._runtime.onnxruntime_package import import_onnxruntime
from ortmulti.create.model import Model
from ortmulti.devices import providers as _providers
from ortmulti.devices.device import Device, name_devices, parse_devices
from ortmulti.errors import DeviceError, InvalidArgument
from ortmulti.interface.onnxruntime_errors import error_of, translate
from ortmulti.interface.session_observer import observer
from ortmulti.options.model_additions import replacing_weights
from ortmulti.options.session_options import SETTINGS, SessionOptions

__all__ = ["SessionSpec", "check_additions", "create_session", "open_package", "session_class", "session_specs"]


@dataclass(frozen=True)
class SessionSpec:
    """All data to create one session. It can be sent to another process.

    Attributes:
        model: An absolute path, or bytes.
        text: The model, for messages.
        device: The session's device.
        providers: onnxruntime's providers and their options.
        options: Attributes of onnxruntime's SessionOptions; enumerations as their numbers.
        config_entries: Session configuration entries.
        free_dimensions_by_name, free_dimensions_by_denotation: Sizes of free dimensions.
        custom_op_libraries: Paths of shared libraries with custom operators.
    """

    model: str | bytes
    text: str
    device: Device
    providers: Sequence[_providers.Provider]
    options: Mapping[str, Any] = field(default_factory=dict)
    config_entries: Mapping[str, str] = field(default_factory=dict)
    free_dimensions_by_name: Sequence[tuple[str, int]] = ()
    free_dimensions_by_denotation: Sequence[tuple[str, int]] = ()
    custom_op_libraries: Sequence[str] = ()


def session_specs(
    model: Model,
    devices: str | int | Device | Iterable[str | int | Device],
    sessions_per_device: int,
    options: SessionOptions | None,
    provider_options: Mapping[str, Any] | None,
) -> list[SessionSpec]:
    """Check the arguments of `load` and return one spec for each session, those of the first device first.

    Raises:
        NotImplemented: onnxruntime's sessions cannot have one of the options.
        Error: As `load`.
    """
    sessions_per_device = checks.integer("sessions_per_device", sessions_per_device, minimum=1)
    core = (options or SessionOptions())._core
    check_additions(core)
    if model.external.weights:
        raise errors.NotImplemented("onnxruntime's sessions take no weights from sources: use backend='core'")
    named = name_devices(devices)
    _providers.check_device_options(provider_options, named)
    if any(device.is_plugin for device in named or ()):
        raise errors.NotImplemented("onnxruntime's sessions are not created on plug-ins' devices: use backend='core'")
    targets = parse_devices(devices)
    if provider_options and not any(device.kind == "cuda" for device in targets):
        raise InvalidArgument("provider_options are for the CUDA provider, but no device is a GPU: leave them out")
    providers = {device: _providers.for_device(device, provider_options) for device in targets}
    _providers.check_usable([provider for of_device in providers.values() for provider in of_device])
    # A worker may start when this process is in another folder.
    source = str(Path(model.path).absolute()) if model.path else bytes(model.graph)
    on_cpu = sum(device.kind == "cpu" for device in targets) * sessions_per_device
    return [
        SessionSpec(
            source,
            str(model),
            device,
            providers[device],
            _attributes(core, device, on_cpu),
            dict(core.config_entries),
            list(core.free_dimensions_by_name),
            list(core.free_dimensions_by_denotation),
        )
        for device in targets
        for _ in range(sessions_per_device)
    ]


def check_additions(options: _core.SessionOptions) -> None:
    """Raise `NotImplemented` for parts of the options that onnxruntime's sessions cannot have."""
    if options.threads is not None:
        raise errors.NotImplemented(
            "onnxruntime's sessions make their threads themselves: they cannot be given SessionOptions.threads"
        )
    methods = replacing_weights(options)
    if options.custom_op_libraries:
        # It keeps the one table of functions of the ONNX Runtime that has registered it last; here there are two.
        methods = ", ".join([*filter(None, [methods]), "register_custom_ops_library"])
    if options.providers:
        methods = ", ".join([*filter(None, [methods]), "add_provider_for_devices"])
    if methods:
        raise errors.NotImplemented(f"onnxruntime's sessions do not take additions to the options by {methods}")


def _attributes(core: _core.SessionOptions, device: Device, on_cpu: int) -> dict[str, Any]:
    """Return the attributes of onnxruntime's options for one of ``on_cpu`` sessions on the CPU, or for one on a GPU."""
    defaults = _core.SessionOptions()
    changed = {name: getattr(core, name) for name in SETTINGS if getattr(core, name) != getattr(defaults, name)}
    # As the sessions of create_sessions: those on the CPU share the cores, the others need none.
    shared = max(1, _core.usable_cores() // on_cpu) if device.kind == "cpu" else 1
    return {**changed, "intra_op_num_threads": core.intra_op_num_threads or shared}


def open_package(devices: Iterable[Device]) -> Any:
    """Import onnxruntime, which opens its own copy of ONNX Runtime.

    If a device is a GPU, also open the CUDA libraries of the nvidia-* wheels.

    Returns:
        The package, untyped: it has no stubs.

    Raises:
        LibraryError: onnxruntime cannot be imported.
    """
    with observer().opening("import onnxruntime"):
        ort = import_onnxruntime()
    observer().opened(ort)
    if any(device.kind == "cuda" for device in devices) and hasattr(ort, "preload_dlls"):
        with observer().opening("open CUDA libraries"):
            ort.preload_dlls()
    return ort


def create_session(ort: Any, spec: SessionSpec, weights: Any = None) -> Any:
    """Create an onnxruntime.InferenceSession. A session on a GPU is freed at exit before the CUDA driver.

    Args:
        ort: The package, see `open_package`.
        weights: Weights that the session uses in place, and keeps alive.

    Raises:
        InvalidArgument: This release does not have an option.
        DeviceError: The session ended up without the provider of its device.
        Error: onnxruntime's own error under its name; the message names the model and the device.
    """
    device = str(spec.device)
    try:
        options = _make_options(ort, spec)
        if weights is not None:
            weights.add_to(options)
        with observer().creating(options, device):
            session = session_class(ort)(spec.model, options, list(spec.providers), weights)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise error_of(*translate(error, f"creating a session of {spec.text} on {device}")) from error
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
    for name, size in spec.free_dimensions_by_name:
        options.add_free_dimension_override_by_name(name, size)
    for denotation, size in spec.free_dimensions_by_denotation:
        options.add_free_dimension_override_by_denotation(denotation, size)
    for library in spec.custom_op_libraries:
        with observer().opening("open custom operators"):
            options.register_custom_ops_library(library)
    return options


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


def _free_on_exit(session: Any) -> None:
    """Free the session before the CUDA driver shuts down, if it still exists. Later the process would crash."""
    if not _on_gpus:
        atexit.unregister(_free_sessions)
        atexit.register(_free_sessions)
    _on_gpus.add(session)


def _free_sessions() -> None:
    for session in list(_on_gpus):
        session._sess = None
        session._ortmulti_weights = None
