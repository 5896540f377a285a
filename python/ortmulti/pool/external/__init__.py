"""Pools over the onnxruntime package: each session in a process of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortmulti.create.loader import OnLoadProgress
    from ortmulti.create.request import CreationRequest
    from ortmulti.pool.configuration import Batching
    from ortmulti.pool.external.members import ProcessMembers

__all__ = ["open_processes"]


def open_processes(
    request: CreationRequest,
    progress: OnLoadProgress | None,
    max_queue: int | None,
    batching: Batching | None,
    in_flight: int,
    version: str,
) -> ProcessMembers:
    """Return the members of a pool, with ready sessions; arguments as for `load`.

    Args:
        in_flight: Number of requests that a process on a GPU has at a time; one of them runs.

    Raises:
        As `load`; LibraryError also if the onnxruntime package cannot be imported.
    """
    from ortmulti.create.loader import LoadProgress
    from ortmulti.interface.onnxruntime_sessions import session_specs
    from ortmulti.pool.external.members import ProcessMembers
    from ortmulti.pool.external.processes import ProcessSessions

    start = time.monotonic()
    specs = session_specs(
        request.model, request.devices, request.sessions_per_device, request.options, request.provider_options
    )

    def notify(ready: int, total: int, device: str) -> None:
        if progress is not None:
            progress(LoadProgress(0, 0, time.monotonic() - start, ready, total, device))

    sessions = ProcessSessions(specs, notify, in_flight)
    try:
        sessions.open()
        return ProcessMembers(sessions, max_queue, batching, version)
    except BaseException:  # Ctrl-C also between two of these steps
        sessions.close()
        raise
