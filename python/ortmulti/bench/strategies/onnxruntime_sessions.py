"""Sessions of the onnxruntime package, for comparisons: in this process or in another one."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti.devices.providers import CPU, CUDA
from ortmulti.errors import DeviceError, Error
from ortmulti.interface.patch import import_module
from ortmulti.interface.session_observer import observer

__all__ = ["SessionSettings", "create_session", "open_package"]


@dataclass(frozen=True)
class SessionSettings:
    """The session options of a comparison: every strategy gives all of its sessions the same ones.

    Attributes:
        intra_op_num_threads: threads of each session on the CPU, including the calling one; 0: ONNX Runtime's default,
            all cores for each session.
        provider_options: options of the CUDA provider, besides the device.
        config_entries: session configuration entries, such as "session.use_env_allocators".
        custom_op_libraries: paths of shared libraries with custom operators.
    """

    intra_op_num_threads: int = 0
    provider_options: Mapping[str, str] = field(default_factory=dict)
    config_entries: Mapping[str, str] = field(default_factory=dict)
    custom_op_libraries: Sequence[str] = ()

    @classmethod
    def side_by_side(cls, devices: Sequence[str], cores: int, **others: Any) -> SessionSettings:
        """Return settings under which sessions on all of `devices` share `cores` instead of each taking all of them.

        CPU sessions get ``cores / number of sessions`` threads, at least one. Where every session is on a GPU, they
        get one: the CPU has nothing to compute there, and further threads would only wait.
        """
        on_cpu = any(device == "cpu" for device in devices)
        return cls(intra_op_num_threads=max(1, cores // len(devices)) if on_cpu else 1, **others)


def open_package(devices: Iterable[str]) -> Any:
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
    if any(device != "cpu" for device in devices) and hasattr(ort, "preload_dlls"):
        with observer().opening("open CUDA libraries"):
            ort.preload_dlls()
    return ort


def create_session(
    ort: Any, model: str | Path, device: str, settings: SessionSettings | None = None, **attributes: Any
) -> Any:
    """Create an onnxruntime.InferenceSession. A session on a GPU is freed at exit before the CUDA driver.

    Args:
        ort: The package, see `open_package`.
        model: The .onnx file.
        device: "cpu" or "cuda:<index>".
        settings: Its options.
        attributes: Further attributes of onnxruntime's SessionOptions.

    Raises:
        DeviceError: The session ended up without the provider of its device.
        Error: onnxruntime's own error; the message names the model and the device.
    """
    settings = settings or SessionSettings()
    kind, index = _core.parse_device(device)
    provider = CUDA if kind == "cuda" else CPU
    given = {"device_id": str(index), **settings.provider_options} if kind == "cuda" else {}
    try:
        options = ort.SessionOptions()
        for name, value in {"intra_op_num_threads": settings.intra_op_num_threads, **attributes}.items():
            setattr(options, name, value)
        for key, value in settings.config_entries.items():
            options.add_session_config_entry(key, value)
        for library in settings.custom_op_libraries:
            with observer().opening("open custom operators"):
                options.register_custom_ops_library(library)
        with observer().creating(options, device):
            # Without its fallback, which would hide why CUDA failed behind a session on the CPU.
            session = ort.InferenceSession(str(Path(model).absolute()), options, [(provider, given)], enable_fallback=0)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise Error(f"creating a session of '{model}' on {device}: {error}") from error
    # onnxruntime only warns when a provider cannot be used, and leaves the session on the CPU.
    if provider not in session.get_providers():
        raise DeviceError(
            f"{device}: onnxruntime {ort.__version__} could not use the CUDA provider and put the session on the CPU; "
            f"its build offers {', '.join(ort.get_available_providers())}"
        )
    if device != "cpu":
        _free_on_exit(session)
    observer().created([session], [device])
    return session


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
