"""Pools over the onnxruntime package: its sessions in threads of this process, or in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ortmulti.create.loader import LoadProgress, OnLoadProgress
from ortmulti.devices.device import Device
from ortmulti.options.session_options import SessionOptions

if TYPE_CHECKING:
    from ortmulti.create.request import Model
    from ortmulti.pool.configuration import Batching
    from ortmulti.pool.external.members import BackendMembers

__all__ = ["open_backend"]


def open_backend(
    backend: Literal["threads", "processes"],
    model: Model,
    devices: str | int | Device | Iterable[str | int | Device],
    sessions_per_device: int,
    options: SessionOptions | None,
    provider_options: Mapping[str, Any] | None,
    *,
    progress: OnLoadProgress | None,
    max_queue: int | None,
    batching: Batching | None,
    in_flight: int = 2,
    version: str = "",
) -> BackendMembers:
    """Return a pool of ready sessions of one model; arguments as for `load`.

    Args:
        in_flight: For processes on GPUs: number of requests that a process has at a time; one of them runs.

    Raises:
        As `load`; LibraryError also if the onnxruntime package cannot be imported.
    """
    from ortmulti.interface.onnxruntime_sessions import session_specs
    from ortmulti.options.foreign_options import to_session_options
    from ortmulti.pool.external.members import BackendMembers
    from ortmulti.pool.external.sessions import BackendSessions

    start = time.monotonic()
    specs = session_specs(model, devices, sessions_per_device, to_session_options(options), provider_options)

    def notify(ready: int, total: int, device: str) -> None:
        if progress is not None:
            progress(LoadProgress(0, 0, time.monotonic() - start, ready, total, device))

    sessions: BackendSessions
    if backend == "threads":
        from ortmulti.pool.external.threads import ThreadSessions

        sessions = ThreadSessions(specs, notify)
    else:
        from ortmulti.pool.external.processes import ProcessSessions

        sessions = ProcessSessions(specs, notify, in_flight)
    try:
        sessions.open()
        return BackendMembers(backend, sessions, max_queue, batching, version)
    except BaseException:  # Ctrl-C also between two of these steps
        sessions.close()
        raise
