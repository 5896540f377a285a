"""Making one model ready on several devices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ortmulti import _creation, _shared, _visible_gpus
from ortmulti._creation import Model, Serialize
from ortmulti._foreign_options import to_session_options
from ortmulti._shared import Optimize, Strategy
from ortmulti.devices import Device, name_devices, parse_devices
from ortmulti.errors import InvalidType
from ortmulti.loader import LoaderOptions
from ortmulti.options import SessionOptions
from ortmulti.pool.engine import BackendName, check_arguments
from ortmulti.pool.pool import Batching, Pool, check_queue
from ortmulti.pool.warmup import Warmup
from ortmulti.progress import LoadProgress, OnLoadProgress
from ortmulti.session import adopt, make_request

__all__ = ["load"]


class _Reporter:
    """Puts what the core reports, sessions and bytes, together."""

    def __init__(
        self, progress: OnLoadProgress, start: float, named: Sequence[Device] | None, sessions_per_device: int
    ) -> None:
        self._progress = progress
        self._start = start
        self._named = named
        self._sessions_per_device = sessions_per_device
        self._bytes = (0, 0)
        self._sessions: tuple[int, int] | None = None

    def session_ready(self, ready: int, total: int, device: str) -> None:
        self._sessions = (ready, total)
        self._report(device)

    def bytes_loaded(self, loaded: int, total: int) -> None:
        self._bytes = (loaded, total)
        self._report("")

    def _report(self, device: str) -> None:
        if self._sessions is None:
            devices = parse_devices("all") if self._named is None else self._named
            self._sessions = (0, len(devices) * self._sessions_per_device)
        self._progress(LoadProgress(*self._bytes, time.monotonic() - self._start, *self._sessions, device))


def load(
    model: Model,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    sessions_per_device: int = 1,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    *,
    strategy: Strategy = "shared",
    optimize: Optimize = "auto",
    serialize: Serialize | None = None,
    progress: OnLoadProgress | None = None,
    loader: LoaderOptions | None = None,
    max_queue: int | None = None,
    batching: Batching | None = None,
    warmup: Warmup | bool = False,
    backend: BackendName = "core",
) -> Pool:
    """Loads one model on several devices: its weights are read once, and the sessions of a device use one copy.

    docs/loading.md says how, and what is loaded otherwise and why.

    Args:
        model: Path of a model, or its bytes; see `InferenceSession`.
        devices: ``"all"`` (every GPU, or the CPU where there is no NVIDIA hardware), a device or several, as
            `parse_devices` takes them.
        sessions_per_device: Sessions on each device; default 1.
        options: Options of every session, as for `create_sessions`.
        provider_options: Options of the CUDA provider, the same for every GPU, without ``device_id``.
        strategy: ``"shared"`` or ``"native"``, as for `create_sessions`.
        optimize: ``"auto"``, ``"offline"`` or ``"never"``, as for `create_sessions`.
        serialize: Which creations wait for each other, as for `create_sessions`.
        progress: Called in this thread with a `LoadProgress` whenever a session is ready, and while weights are loaded.
        loader: How the weights are read.
        max_queue: How many requests may wait; default: any number. 0: none that cannot begin at once. `Pool.submit`
            says what happens to others; `Pool.run` is not limited.
        batching: Whether requests are joined into one run, and how; default: they are not.
        warmup: What every session runs before this returns, as `Pool.warmup`; True: `Warmup()`. Default: nothing.
        backend: Who runs it: ``"core"``; ``"threads"``: sessions of the onnxruntime package, each in a thread of
            Python's; ``"processes"``: such sessions, each in a process of its own, which is started again when it dies
            (docs/pool.md). The latter two take none of ``strategy``, ``optimize``, ``serialize`` and ``loader``.

    Returns:
        The pool.

    Raises:
        As `create_sessions`. After an error nothing of the load is left.
        InvalidArgument: An argument that the backend does not have.
        LibraryError: A backend without the onnxruntime package, which it needs.
    """
    start = time.monotonic()
    options = to_session_options(options)
    if progress is not None and not callable(progress):
        raise InvalidType(f"progress is a function of a LoadProgress, not {progress!r}")
    check_queue(max_queue, batching)
    if not isinstance(warmup, bool | Warmup):
        raise InvalidType(f"warmup is an ortmulti.Warmup or a bool, not {warmup!r}")
    check_arguments(
        backend,
        {
            "strategy": (strategy, "shared"),
            "optimize": (optimize, "auto"),
            "serialize": (serialize, None),
            "loader": (loader, None),
        },
    )
    if backend != "core":
        from ortmulti.pool.backends import open_backend

        engine = open_backend(
            backend,
            model,
            devices,
            sessions_per_device,
            options,
            provider_options,
            progress=progress,
            max_queue=max_queue,
            batching=batching,
        )
        return _warm(Pool(engine), warmup)
    named = name_devices(devices)
    _creation.check_arguments(serialize, None)
    callbacks = _creation.Callbacks()
    if progress is not None:
        reporter = _Reporter(progress, start, named, sessions_per_device)
        callbacks = _creation.Callbacks(reporter.session_ready, reporter.bytes_loaded)
    request = make_request(
        model,
        "all" if named is None else named,
        sessions_per_device,
        options,
        provider_options,
        serialize,
        strategy,
        optimize,
        loader,
        callbacks,
    )
    created, timeline, targets = _shared.create(request)
    _visible_gpus.hint(targets)
    return _warm(Pool(adopt(created, timeline, options), max_queue=max_queue, batching=batching), warmup)


def _warm(pool: Pool, warmup: Warmup | bool) -> Pool:
    if warmup is not False:
        try:
            pool.warmup(None if warmup is True else warmup)
        except BaseException:
            pool.close()
            raise
    return pool
