"""Pools over the onnxruntime package: its sessions in threads of this process, or in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ortmulti.devices import Device
from ortmulti.loader import LoadProgress, OnLoadProgress
from ortmulti.options import SessionOptions
from ortmulti.timeline import Timeline

if TYPE_CHECKING:
    from ortmulti._create.request import Model
    from ortmulti.pool.configuration import Batching
    from ortmulti.pool.engine import Backend

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
) -> Backend:
    """The sessions of one model, ready, behind one queue; arguments as for `load`.

    Args:
        in_flight: For processes: how many requests a worker has at a time, one of which runs.

    Raises:
        As `load`; LibraryError also where the onnxruntime package cannot be imported.
    """
    from ortmulti._create.foreign_options import to_session_options
    from ortmulti._create.onnxruntime_sessions import session_specs
    from ortmulti.pool.external.dispatch import Dispatcher
    from ortmulti.pool.external.request_queue import RequestQueue

    start = time.monotonic()
    specs = session_specs(model, devices, sessions_per_device, to_session_options(options), provider_options)
    waiting = RequestQueue() if batching is None else RequestQueue(batching.max_size, int(batching.max_delay_ms * 1e6))
    dispatcher = Dispatcher(max_queue, waiting)
    timeline = Timeline()

    def notify(ready: int, total: int, device: str) -> None:
        if progress is not None:
            progress(LoadProgress(0, 0, time.monotonic() - start, ready, total, device))

    try:
        if backend == "threads":
            from ortmulti.pool.external.threads import ThreadsEngine, open_threads

            signature = open_threads(specs, batching, dispatcher, timeline, notify)
            return ThreadsEngine(backend, dispatcher, signature, timeline, batching)
        from ortmulti.pool.external.processes import ProcessesEngine, open_processes

        signature = open_processes(specs, batching, dispatcher, timeline, notify, in_flight)
        return ProcessesEngine(backend, dispatcher, signature, timeline, batching)
    except BaseException:  # Ctrl-C also between two of these steps
        dispatcher.close(True)
        raise
