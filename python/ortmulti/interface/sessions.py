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

    from ortmulti.create.loading import Loading
    from ortmulti.create.model import Model
    from ortmulti.devices.device import Device
    from ortmulti.interface.session import Sessions
    from ortmulti.options.session_options import SessionOptions

__all__ = ["create_sessions"]


@checks.known_arguments
def create_sessions(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    sessions_per_device: int = 1,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    *,
    share: Literal["host"] | None = None,
    loading: Loading | None = None,
    progress: Callable[[int, int, str], object] | None = None,
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
        share: As for `load`.
        loading: How the sessions are made, for example ``Loading(strategy="native")``: see there, without what is for
            pools. ``tuning`` does not change the number of sessions. Default: ``Loading()``.
        progress: Called in this thread as ``progress(done, total, device)`` whenever a session is ready.

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
    with observer().importing("import ortmulti's loading"):
        # It starts the driver first, and then imports as well.
        request = early_start.begin_request(
            True, model, devices, sessions_per_device, options, provider_options, share, loading
        )
        from ortmulti.interface.session import InferenceSession, Sessions
        from ortmulti.loading import ways
        from ortmulti.loading.creation import Creation
        from ortmulti.timeline import Timeline

    if request.loading.tuning is not None:
        from ortmulti.loading.tuning import use_for_request

        request, _ = use_for_request(request.loading.tuning, request)
    timeline = Timeline()
    creation = Creation(request, timeline, progress=progress)
    ways.create(creation)
    created = [session for _, session in sorted(creation.sessions.items())]
    return Sessions([InferenceSession._from_core(core, timeline, request.options) for core in created], timeline)
