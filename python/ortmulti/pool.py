"""One model on several devices, loaded and closed as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ortmulti import _prewarm, _visible_gpus
from ortmulti.devices import Device, name_devices, parse_devices
from ortmulti.errors import InvalidType
from ortmulti.loader import LoaderOptions
from ortmulti.options import SessionOptions
from ortmulti.progress import LoadProgress, OnLoadProgress
from ortmulti.session import Model, Serialize, Sessions, create_sessions
from ortmulti.timeline import Timeline

__all__ = ["Pool", "load"]


class Pool:
    """The sessions of one model, as `load` returns them.

    A context manager: the end of the ``with`` block closes it.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    @property
    def sessions(self) -> Sessions:
        """The sessions, those of the first device first. After `close` using one raises `ClosedError`."""
        return self._sessions

    @property
    def devices(self) -> list[str]:
        """The device of each session."""
        return self._sessions.devices

    @property
    def timeline(self) -> Timeline:
        """What loading spent its time on."""
        return self._sessions.timeline

    def close(self) -> None:
        """Waits for the runs that are under way and frees the sessions and their weights. Again: does nothing."""
        self._sessions.close()

    @property
    def closed(self) -> bool:
        """Whether all of its sessions are closed."""
        return all(session.closed for session in self._sessions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Pool of {self._sessions[0]._core.model()} on {', '.join(self.devices)}{state}>"


def _reporter(progress: OnLoadProgress, start: float) -> Callable[[int, int, str], object]:
    def report(ready: int, total: int, device: str) -> object:
        return progress(LoadProgress(0, 0, time.monotonic() - start, ready, total, device))

    return report


def load(
    model: Model,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    sessions_per_device: int = 1,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    *,
    serialize: Serialize | None = None,
    progress: OnLoadProgress | None = None,
    loader: LoaderOptions | None = None,
) -> Pool:
    """Loads one model on several devices.

    Args:
        model: Path of a model, or its bytes; see `InferenceSession`.
        devices: ``"all"`` (every GPU, or the CPU where there is no NVIDIA hardware), a device or several, as
            `parse_devices` takes them.
        sessions_per_device: Sessions on each device; default 1.
        options: Options of every session, as for `create_sessions`.
        provider_options: Options of the CUDA provider, the same for every GPU, without ``device_id``.
        serialize: Which creations wait for each other, as for `create_sessions`.
        progress: Called in this thread with a `LoadProgress` whenever a session is ready.
        loader: How the weights are read.

    Returns:
        The pool.

    Raises:
        As `create_sessions`. After an error nothing of the load is left.
    """
    start = time.monotonic()
    if progress is not None and not callable(progress):
        raise InvalidType(f"progress is a function of a LoadProgress, not {progress!r}")
    if loader is not None and not isinstance(loader, LoaderOptions):
        raise InvalidType(f"loader is an ortmulti.LoaderOptions, not {loader!r}")
    named = name_devices(devices)
    _prewarm.begin(named)
    targets = parse_devices("all" if named is None else named)
    sessions = create_sessions(
        model,
        targets,
        sessions_per_device,
        options,
        provider_options,
        serialize,
        None if progress is None else _reporter(progress, start),
    )
    _visible_gpus.hint(targets)
    return Pool(sessions)
