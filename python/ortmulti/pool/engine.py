"""What a `Pool` is made of: who takes its requests, and who has its sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ortmulti.errors import InvalidArgument

if TYPE_CHECKING:
    from ortmulti import _core
    from ortmulti._create.request import CheckedModel
    from ortmulti.devices import Device
    from ortmulti.options import RunOptions
    from ortmulti.pool.configuration import Warmup
    from ortmulti.timeline import Timeline

__all__ = ["Backend", "BackendName", "Devices", "Engine", "PoolMembers", "check_arguments"]

Devices: TypeAlias = "str | int | Device | Iterable[str | int | Device]"

BackendName: TypeAlias = Literal["core", "threads", "processes"]


class Engine(Protocol):
    """One queue in front of several sessions, as ``_core.Pool`` is, whose requests are waited for instead of
    calling back. All methods may be called from any thread."""

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
        device: str = "",
        timeout: float | None = None,
    ) -> list[Any]:
        """The outputs of a run; ``device`` is empty for any, ``timeout`` in seconds."""

    def submit(
        self,
        future: Any,
        complete: Callable[..., None],
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        wait: float | None,
        limited: bool,
        run_options: RunOptions | None = None,
        device: str = "",
        timeout: float | None = None,
    ) -> Any:
        """Asks for a run, and returns what `cancel` takes.

        Args:
            complete: Called once as ``complete(future, outputs, exception, cancelled)``, with outputs or an exception.
            wait: Seconds to wait for room in the queue; None: as long as it takes.
            limited: Whether the queue's length counts.
        """

    def cancel(self, request: Any) -> bool:
        """Cancels what `submit` returned, and says whether it was not answered yet."""

    def stats(self) -> dict[str, Any]:
        """What `PoolStats` is made from."""

    def close(self, cancel_waiting: bool) -> None:
        """Takes nothing more, answers or cancels what waits, answers what runs, and returns when that is done."""

    def closed(self) -> bool:
        """Whether `close` was called."""


class Backend(Engine, Protocol):
    """An engine with sessions of its own."""

    @property
    def devices(self) -> list[str]:
        """The device of each session."""

    @property
    def sessions(self) -> Any:
        """The sessions, where this process has them."""

    @property
    def timeline(self) -> Timeline:
        """What making them ready spent its time on."""

    @property
    def model(self) -> str:
        """The model, for messages."""

    def warm_up(self, warmup: Warmup) -> None:
        """Runs every session, all at the same time, beside the queue."""


class PoolMembers(Protocol):
    """What a pool consists of, and what can be done with that: the core's, or a backend's."""

    @property
    def core(self) -> Engine | _core.Pool:
        """Who takes the requests now."""

    @property
    def sessions(self) -> Any:
        """The sessions that are there by now. Raises Error where they are not to be had."""

    @property
    def devices(self) -> list[str]:
        """The device of each session that is there by now."""

    @property
    def timeline(self) -> Timeline:
        """What making them ready spent its time on."""

    @property
    def model(self) -> str:
        """The model, for messages."""

    @property
    def expected(self) -> int:
        """How many requests can be under way, as far as is known; 1 at least."""

    def extras(self, on_device: bool, trace: bool) -> tuple[Any, ...]:
        """Further arguments of the engine's run and submit; empty without both. Raises Error for what it cannot do."""

    def before_submit(self) -> None:
        """Called before each submission. Raises Error where nobody could be told of the answer."""

    def warm_up(self, warmup: Warmup) -> None:
        """Runs every session, all at the same time, beside the queue."""

    def states(self) -> dict[str, tuple[str, str]]:
        """Each device's state, and why it failed or broke."""

    def wait_ready(self, timeout: float | None, devices: Devices | None, /) -> list[str]:
        """As `Pool.wait_ready`."""

    def add_devices(self, devices: Devices, /) -> None:
        """As `Pool.add_devices`."""

    def remove_devices(self, devices: Devices, /) -> None:
        """As `Pool.remove_devices`."""

    def replace_model(self, model: CheckedModel, warmup: Warmup | bool | None, /) -> None:
        """As `Pool.replace_model`."""

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
