"""What a `Pool` is made of: the core's pool, and who has its sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ortmulti.errors import InvalidArgument

if TYPE_CHECKING:
    from ortmulti import _core
    from ortmulti._create.request import CheckedModel
    from ortmulti.devices import Device
    from ortmulti.options import RunOptions
    from ortmulti.pool.configuration import Batching, Warmup
    from ortmulti.timeline import Timeline

__all__ = ["BackendName", "Devices", "PoolMembers", "batching_argument", "check_arguments"]

Devices: TypeAlias = "str | int | Device | Iterable[str | int | Device]"

BackendName: TypeAlias = Literal["core", "threads", "processes"]


class PoolMembers(Protocol):
    """What a pool consists of, and what can be done with that: the core's sessions, or a backend's."""

    @property
    def core(self) -> _core.Pool:
        """The core's pool, which takes the requests now."""

    @property
    def sessions(self) -> Any:
        """The sessions that are there by now. Raises Error where they are not to be had."""

    @property
    def devices(self) -> list[str]:
        """The device of each session that is there by now."""

    @property
    def timeline(self) -> Timeline:
        """What making them ready spent its time on."""

    def description(self) -> Any:
        """An object with the model's ``get_inputs``, ``get_outputs`` and ``get_modelmeta``. Waits for the first
        session. Raises Error if none comes."""

    @property
    def model(self) -> str:
        """The model, for messages."""

    @property
    def expected(self) -> int:
        """How many requests can be under way, as far as is known; 1 at least."""

    def extras(self, run_options: RunOptions | None, on_device: bool, trace: bool) -> tuple[Any, ...]:
        """The last arguments of the core's run and submit; empty without the last two. Raises Error for what it cannot
        do."""

    def before_submit(self) -> None:
        """Called before each submission. Raises Error where nobody could be told of the answer."""

    def warm_up(self, warmup: Warmup) -> None:
        """Runs every session, all at the same time, beside the queue."""

    def stats(self) -> dict[str, Any]:
        """What `PoolStats` is made from: the core's, and the model's version."""

    def states(self) -> dict[str, tuple[str, str]]:
        """Each device's state, and why it failed or broke."""

    def wait_ready(self, timeout: float | None, devices: Devices | None, /) -> list[str]:
        """As `Pool.wait_ready`."""

    def add_devices(self, devices: Devices, /) -> None:
        """As `Pool.add_devices`."""

    def remove_devices(self, devices: Devices, /) -> None:
        """As `Pool.remove_devices`."""

    def replace_model(
        self,
        model: CheckedModel,
        warmup: Warmup | bool | None,
        version: str,
        same_interface: bool,
        verify: Callable[[PoolMembers], object] | None,
        /,
    ) -> None:
        """As `Pool.replace_model`; ``verify`` is called with the members that are to take over."""

    def close(self, cancel_pending: bool) -> None:
        """As `Pool.close`."""

    def closed(self) -> bool:
        """As `Pool.closed`."""

    def abandon(self) -> None:
        """Called when nobody has the pool any more."""


def check_arguments(backend: object, given: Mapping[str, tuple[object, object]]) -> None:
    """Raises InvalidArgument for an unknown backend, and for arguments that the backend does not have.

    Args:
        given: For each argument of `load` that is the core's alone what it was given, and its default.
    """
    if backend not in ("core", "threads", "processes"):
        raise InvalidArgument(f"backend is 'core', 'threads' or 'processes', not {backend!r}")
    if backend == "core":
        return
    refused = [name for name, (value, default) in given.items() if value is not default and value != default]
    if refused:
        raise InvalidArgument(
            f"backend={backend!r} has no {', '.join(refused)}: its sessions are onnxruntime's, which load the model by "
            "themselves"
        )


def batching_argument(batching: Batching | None) -> tuple[int, float, int, list[int]] | None:
    """As `_core.Pool` takes it."""
    if batching is None:
        return None
    return batching.max_size, batching.max_delay_ms / 1000, batching.axis, list(batching.sizes)
