"""Sessions of the onnxruntime package, for the strategies that are built on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmulti._runtime import onnxruntime_package

from .base import Array, SessionSettings, StrategyError
from .watching import watcher

_CUDA_PROVIDER = "CUDAExecutionProvider"


def import_onnxruntime(devices: Sequence[str]) -> Any:
    """Imports onnxruntime and, for CUDA devices, opens the CUDA libraries of the nvidia-* wheels.

    The import is what opens ONNX Runtime: its extension module holds a copy of it. The package's Python is the least of
    it (2 of 63 ms on two cores of an EPYC). So strategies do this as part of creation.

    Returns:
        The module, untyped: the package has no stubs.

    Raises:
        LibraryError: onnxruntime cannot be imported.
    """
    with watcher().opening("import onnxruntime"):
        onnxruntime = onnxruntime_package.import_onnxruntime()
    watcher().opened(onnxruntime)
    if any(device.startswith("cuda") for device in devices):
        with watcher().opening("open CUDA libraries"):
            onnxruntime_package.open_cuda_libraries(onnxruntime, devices)
    return onnxruntime


def timed_import(devices: Sequence[str]) -> tuple[Any, float]:
    """`import_onnxruntime`, with the seconds that it took."""
    begin = time.perf_counter()
    onnxruntime = import_onnxruntime(devices)
    return onnxruntime, time.perf_counter() - begin


def create_session(onnxruntime: Any, model: Path, device: str, settings: SessionSettings) -> Any:
    """Creates an onnxruntime.InferenceSession on one device.

    Raises:
        StrategyError: it could not be created, or ended up without the device that was asked for.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_num_threads
    for key, value in settings.config_entries.items():
        options.add_session_config_entry(key, value)
    for library in settings.custom_op_libraries:
        with watcher().opening("open custom operators"):
            options.register_custom_ops_library(library)
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.startswith("cuda:"):
        cuda_options = {"device_id": device.removeprefix("cuda:"), **settings.provider_options}
        providers.insert(0, (_CUDA_PROVIDER, cuda_options))
    try:
        # Without its fallback, which would hide why CUDA failed (no memory, say) behind a session on the CPU.
        with watcher().creating(options, device):
            session = onnxruntime.InferenceSession(str(model), options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise StrategyError(f"{device}: creating the session failed: {type(error).__name__}: {error}") from error
    # onnxruntime only warns when a provider cannot be used, and leaves the session on the CPU.
    if device != "cpu" and _CUDA_PROVIDER not in session.get_providers():
        raise StrategyError(
            f"{device}: onnxruntime {onnxruntime.__version__} could not use the CUDA provider and put the session on "
            f"the CPU; its build offers {', '.join(onnxruntime.get_available_providers())}"
        )
    watcher().created([session], [device])
    return session


def timed_creation(onnxruntime: Any, model: Path, device: str, settings: SessionSettings) -> tuple[Any, float]:
    """`create_session`, with the seconds that it took."""
    begin = time.perf_counter()
    session = create_session(onnxruntime, model, device, settings)
    return session, time.perf_counter() - begin


def run_session(run: Callable[..., list[Any]], device: str, feeds: Mapping[str, Array]) -> list[Array]:
    """Runs all outputs of a session by its bound `run`, so that a failure names the device."""
    try:
        with watcher().running(getattr(run, "__self__", None)):
            return run(None, dict(feeds))
    except Exception as error:
        raise StrategyError(f"{device}: the first run failed: {type(error).__name__}: {error}") from error
