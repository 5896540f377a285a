"""The interface between a `Pool` and the owner of its sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from ortmulti import _core
    from ortmulti.create.request import CheckedModel
    from ortmulti.devices.device import Device
    from ortmulti.interface.session import Sessions
    from ortmulti.pool.configuration import Warmup
    from ortmulti.timeline import Timeline

__all__ = ["Devices", "PoolMembers"]

Devices: TypeAlias = "str | int | Device | Iterable[str | int | Device]"


class PoolMembers(Protocol):
    """The sessions of a pool and their operations: the core's sessions, or onnxruntime's in processes."""

    @property
    def core(self) -> _core.Pool:
        """The core's pool that takes the requests now."""

    @property
    def sessions(self) -> Sessions:
        """The sessions that exist by now. Raises Error if they cannot be returned."""

    @property
    def devices(self) -> list[str]:
        """The device of each session that exists by now."""

    @property
    def timeline(self) -> Timeline:
        """The spans of making them ready."""

    def description(self) -> Any:
        """Return an object with the model's ``get_inputs``, ``get_outputs`` and ``get_modelmeta``. Waits for the first
        session. Raises Error if none comes."""

    @property
    def model(self) -> str:
        """The model, for messages."""

    @property
    def expected(self) -> int:
        """Number of requests that are under way at first where others wait, as far as known; at least 1."""

    @property
    def most(self) -> int:
        """The same, after the core has chosen as many as it may."""

    def check_call(self, has_options: bool, on_device: bool, trace: bool) -> None:
        """Raise InvalidArgument if requests cannot have run options, outputs on their device, or a trace."""

    def before_submit(self) -> None:
        """Called before each submission. Raises Error if no thread can deliver the answer."""

    def warm_up(self, warmup: Warmup | bool) -> None:
        """Run every session, all at the same time, beside the queue. With True: warn if the inputs do not fit."""

    def stats(self) -> dict[str, Any]:
        """Return the parts of `PoolStats`: the core's statistics, and the model's version."""

    def states(self) -> dict[str, tuple[str, str]]:
        """Return each device's state, and the reason of a failure."""

    def wait_ready(self, timeout: float | None, devices: Devices | None, /) -> list[str]:
        """Same as `Pool.wait_ready`."""

    def add_devices(self, devices: Devices, /) -> None:
        """Same as `Pool.add_devices`."""

    def remove_devices(self, devices: Devices, /) -> None:
        """Same as `Pool.remove_devices`."""

    def sleep(
        self, level: str, devices: Devices | None, keep: str | None, auto_wake: bool, timeout: float | None, /
    ) -> None:
        """Same as `Pool.sleep`."""

    def wake(self, devices: Devices | None, timeout: float | None, /) -> None:
        """Same as `Pool.wake`."""

    def replace_model(
        self,
        model: CheckedModel,
        warmup: Warmup | bool | None,
        version: str,
        same_interface: bool,
        verify: Callable[[PoolMembers], object] | None,
        /,
    ) -> None:
        """Same as `Pool.replace_model`; ``verify`` is called with the new members."""

    def close(self, cancel_pending: bool) -> None:
        """Same as `Pool.close`."""

    def closed(self) -> bool:
        """Same as `Pool.closed`."""

    def abandon(self) -> None:
        """Called when no reference to the pool is left."""
