"""Creating one model's sessions on several devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from ortmulti import checks
from ortmulti.errors import InvalidType
from ortmulti.interface.session_observer import observer
from ortmulti.loading import early_start

# Other modules are imported by `create_sessions`, while the driver starts.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ortmulti.create.loader import LoaderOptions
    from ortmulti.create.model import Model
    from ortmulti.devices.device import Device
    from ortmulti.interface.session import Sessions
    from ortmulti.loading.tuning import Tuning
    from ortmulti.options.session_options import SessionOptions

__all__ = ["create_sessions"]


@checks.known_arguments
def create_sessions(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    sessions_per_device: int = 1,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    serialize: Literal["none", "device", "all"] | None = None,
    progress: Callable[[int, int, str], object] | None = None,
    *,
    strategy: Literal["shared", "native"] = "shared",
    optimize: Literal["auto", "never", "offline"] = "auto",
    loader: LoaderOptions | None = None,
    share: Literal["host"] | None = None,
    tuning: str | os.PathLike[str] | Tuning | None = None,
) -> Sessions:
    """Create sessions of one model on several devices at the same time, each in a C++ thread of its own.

    Args:
        model: Path of a model, or its bytes, see `InferenceSession`; or a `Model`, whose weights come from sources.
        devices: ``"all"`` (every GPU, or the CPU where there is no NVIDIA hardware), a device or several, as
            `parse_devices` takes them. A device that is named twice gets two sessions.
        sessions_per_device: Sessions on each device; default 1.
        options: Options of every session, as for `InferenceSession`. Unless ``intra_op_num_threads`` is set, CPU
            sessions share the usable cores, and sessions on a GPU have no threads. Providers that
            `SessionOptions.add_provider_for_devices` has added come before the CPU's; the device is ``"cpu"`` then.
        provider_options: Options of the CUDA provider, the same for every GPU, without ``device_id``; or of the
            plug-in whose devices are named.
        serialize: Which creations wait for each other: ``"none"``; ``"device"``: those on the same device; ``"all"``.
            Default: none. Those on the same GPU only with releases of ONNX Runtime for which concurrent creation on
            one GPU was not tested under stress (docs/concurrent-creation.md).
        progress: Called in this thread as ``progress(done, total, device)`` whenever a session is ready.
        strategy: ``"shared"``: the weights are read once. The sessions of a GPU use one copy, and those on the CPU, or
            on a plug-in's device, are one ONNX Runtime session. ``"native"``: every session loads the model by itself.
            If weights cannot be shared, ``"shared"`` does this too, and the timeline says why (docs/loading.md).
        optimize: For sessions that share weights on GPUs, and for plug-ins that compile. ``"auto"``: the optimized
            model comes from the cache, or is made and put there. ``"offline"``: it must be in the cache. ``"never"``:
            the model is loaded as it is, with graph optimizations off.
        loader: How the weights are read; default: chosen for the machine.
        share: As for `load`.
        tuning: As for `InferenceSession`; it does not change the number of sessions.

    Returns:
        The sessions, those of the first device first.

    Raises:
        Error: As `InferenceSession`. If one session fails, the others are closed, and the error names its device. After
            Ctrl-C (KeyboardInterrupt) the call returns within a second; unfinished sessions are freed in the
            background.
        WeightsError: A file of weights cannot be read, or changed during the load.
        NotFound: The cache does not have the optimized model, with ``optimize="offline"``.
    """
    if progress is not None and not callable(progress):
        raise InvalidType(f"progress is a function of (done, total, device), not {progress!r}")
    plain = tuning is None
    with observer().importing("import ortmulti's loading"):
        # It starts the driver first, and then imports as well.
        request = early_start.begin_request(
            plain,
            model,
            devices,
            sessions_per_device,
            options,
            provider_options,
            serialize,
            strategy,
            optimize,
            loader,
            share,
        )
        from ortmulti.interface.session import InferenceSession, Sessions
        from ortmulti.loading import ways
        from ortmulti.loading.creation import Creation
        from ortmulti.timeline import Timeline

    if tuning is not None:
        from ortmulti.loading.tuning import use_for_request

        request, _ = use_for_request(tuning, request)
    timeline = Timeline()
    creation = Creation(request, timeline, progress=progress)
    ways.create(creation)
    created = [session for _, session in sorted(creation.sessions.items())]
    return Sessions([InferenceSession._from_core(core, timeline, request.options) for core in created], timeline)
