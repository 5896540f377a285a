"""The common part of the backends: sessions of the onnxruntime package, for a pool of the core."""

from __future__ import annotations

import abc
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ortmulti import _core
from ortmulti.interface.onnxruntime_sessions import SessionSpec
from ortmulti.pool.external.signature import Signature
from ortmulti.pool.sleep import ModelFiles
from ortmulti.timeline import Timeline

if TYPE_CHECKING:
    from ortmulti.optimized.key import FileIdentity

__all__ = ["BackendSessions", "Notify", "Reports"]

Notify: TypeAlias = Callable[[int, int, str], object]
"""Called as ``notify(ready, total, device)`` whenever a session is ready."""

Reports: TypeAlias = "queue.SimpleQueue[tuple[int, BaseException | None]]"
"""The places of sessions that are ready, or how they failed."""


class BackendSessions(abc.ABC):
    """The sessions of a backend, and the objects that run them for the core (see ``cpp/bindings/python_runner.hpp``).

    Args:
        specs: The specs of the sessions.
        notify: Called in the thread that calls `open`.
    """

    def __init__(self, specs: Sequence[SessionSpec], notify: Notify) -> None:
        self._specs = specs
        self._notify = notify
        self._files = ModelFiles(specs[0].model)
        self.members: Sequence[Any] = []
        """What each session's place has, once they are ready; each has a ``close``."""
        self.devices = [str(spec.device) for spec in specs]
        self.timeline = Timeline()

    @property
    @abc.abstractmethod
    def sessions(self) -> Any:
        """Same as `Pool.sessions`."""

    @property
    @abc.abstractmethod
    def signature(self) -> Signature:
        """The inputs and outputs of each session, once they are ready."""

    @property
    @abc.abstractmethod
    def expected(self) -> int:
        """Number of requests that can be under way."""

    @abc.abstractmethod
    def open(self) -> None:
        """Make the sessions, all at the same time, and return when they are ready.

        Raises:
            Error: One could not be created; the others are closed by `close`.
        """

    @abc.abstractmethod
    def join(self, core: _core.Pool) -> None:
        """Add them to a pool of the core."""

    def files(self) -> Sequence[FileIdentity]:
        """Same as `ModelFiles.now`."""
        return self._files.now(self._specs[0].config_entries)

    @abc.abstractmethod
    def again(self, device: str) -> BackendSessions:
        """Return sessions like those of a device, to be opened."""

    @abc.abstractmethod
    def return_memory(self) -> None:
        """Return what closed sessions have freed to the system."""

    def of(self, device: str) -> list[Any]:
        """Return the members of a device."""
        return [member for member, name in zip(self.members, self.devices, strict=True) if name == device]

    def replace(self, others: BackendSessions) -> None:
        """Put others of one device into the places of those that it has."""
        new: Iterator[Any] = iter(others.members)
        self.members = [
            next(new) if name == others.devices[0] else member
            for member, name in zip(self.members, self.devices, strict=True)
        ]

    @abc.abstractmethod
    def end_runs(self) -> None:
        """End all present runs, as far as possible."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free them after the pool's last run. A second call does nothing."""

    def restarts(self, _device: str) -> int:
        """Return how often sessions of a device were started again."""
        return 0

    def _await_reports(self, reports: Reports) -> None:
        """Wait until every session has reported that it is ready.

        Raises:
            BaseException: The first error that one reported.
        """
        total = len(self._specs)
        for ready in range(1, total + 1):
            index, error = reports.get()
            if error is not None:
                raise error
            self._notify(ready, total, self.devices[index])
