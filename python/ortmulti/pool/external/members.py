"""A backend's sessions as what a pool consists of; they are there from the start, and stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ortmulti import errors
from ortmulti.devices import name_devices
from ortmulti.errors import ClosedError, InvalidArgument
from ortmulti.pool.engine import Backend, BackendName, Devices

if TYPE_CHECKING:
    from ortmulti._create.request import CheckedModel
    from ortmulti.pool.configuration import Warmup
    from ortmulti.timeline import Timeline

__all__ = ["BackendMembers"]


class BackendMembers:
    """See `ortmulti.pool.engine.PoolMembers`."""

    def __init__(self, name: BackendName, backend: Backend) -> None:
        self._name = name
        self.core = backend

    @property
    def sessions(self) -> Any:
        """As `Backend.sessions`."""
        return self.core.sessions

    @property
    def devices(self) -> list[str]:
        """As `Backend.devices`."""
        return self.core.devices

    @property
    def timeline(self) -> Timeline:
        """As `Backend.timeline`."""
        return self.core.timeline

    @property
    def model(self) -> str:
        """As `Backend.model`."""
        return self.core.model

    @property
    def expected(self) -> int:
        """One for each session."""
        return len(self.devices)

    def extras(self, on_device: bool, trace: bool) -> tuple[Any, ...]:
        """None: it has neither."""
        for name, asked in (("outputs='device'", on_device), ("trace=True", trace)):
            if asked:
                raise InvalidArgument(f"backend={self._name!r} has no {name}: its sessions are onnxruntime's")
        return ()

    def before_submit(self) -> None:
        """Its answers are delivered by a thread of its own."""

    def warm_up(self, warmup: Warmup) -> None:
        """As `Backend.warm_up`."""
        self.core.warm_up(warmup)

    def states(self) -> dict[str, tuple[str, str]]:
        """A device is ready, or broken."""
        return {
            device["device"]: ("broken" if device["broken"] else "ready", device["broken"])
            for device in self.core.stats()["devices"]
        }

    def wait_ready(self, _timeout: float | None, devices: Devices | None) -> list[str]:
        """At once: `load` returned when they were ready."""
        if self.core.closed():
            raise ClosedError("the pool is closed")
        there = list(dict.fromkeys(self.devices))
        named = None if devices is None else name_devices(devices)
        wanted = there if named is None else [str(device) for device in named]
        for device in wanted:
            if device not in there:
                raise InvalidArgument(f"the pool has no session on {device}")
        return wanted

    def add_devices(self, _devices: Devices) -> None:
        """Raises NotImplemented."""
        self._stays()

    def remove_devices(self, _devices: Devices) -> None:
        """Raises NotImplemented."""
        self._stays()

    def replace_model(self, _model: CheckedModel, _warmup: Warmup | bool | None) -> None:
        """Raises NotImplemented."""
        self._stays()

    def _stays(self) -> NoReturn:
        raise errors.NotImplemented(
            f"a pool with backend={self._name!r} keeps the devices and the model that it was loaded with"
        )

    def close(self, cancel_pending: bool) -> None:
        """As `Engine.close`."""
        self.core.close(cancel_pending)

    def closed(self) -> bool:
        """As `Engine.closed`."""
        return self.core.closed()

    def abandon(self) -> None:
        """The backend closes itself."""
