"""What a pool can be asked about its devices and its model, and told to do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ortmulti._create.request import Model
from ortmulti._runtime import checks
from ortmulti.devices import Device
from ortmulti.errors import InvalidType
from ortmulti.pool.configuration import Warmup
from ortmulti.pool.engine import PoolMembers

if TYPE_CHECKING:
    from typing import Self

    from ortmulti._core import ModelMetadata, NodeArg

__all__ = ["Membership"]


class Membership:
    """Readiness and changes of a pool's devices and model, which `Pool` has."""

    def __init__(self, members: PoolMembers, batch_size: int = 1) -> None:
        self._members = members
        self._batch_size = batch_size

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs, with ``name``, ``type`` and ``shape`` as `InferenceSession.get_inputs` has them.

        Waits for the first session. Works after `close`, too, if there was a session.

        Raises:
            ClosedError: The pool was closed before its first session was ready.
            If loading failed before that: the load's error.
        """
        inputs: list[NodeArg] = self._members.description().get_inputs()
        return inputs

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs; otherwise as `get_inputs`."""
        outputs: list[NodeArg] = self._members.description().get_outputs()
        return outputs

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata, as `InferenceSession.get_modelmeta`; otherwise as `get_inputs`."""
        metadata: ModelMetadata = self._members.description().get_modelmeta()
        return metadata

    @property
    def ready(self) -> list[str]:
        """The devices that take requests now, in the order in which they came."""
        return [device for device, (state, _) in self._members.states().items() if state == "ready"]

    def wait_ready(
        self, timeout: float | None = None, devices: str | int | Device | Iterable[str | int | Device] | None = None
    ) -> list[str]:
        """Waits until devices take requests, and returns their names.

        Args:
            timeout: Seconds until that raises; default: as long as it takes.
            devices: Which ones; default: all that `load` was asked for, less those that failed, with
                ``require="any"``.

        Raises:
            DeadlineExceeded: They were not ready within ``timeout``.
            DeviceError: One that was named failed, broke or was removed.
            InvalidArgument: One that was named is not in the pool.
            ClosedError: The pool was closed. If its load failed, the error of that is raised.
        """
        if timeout is not None:
            checks.number("timeout", timeout)
        return self._members.wait_ready(timeout, devices)

    def add_devices(self, devices: str | int | Device | Iterable[str | int | Device]) -> None:
        """Loads the model on further devices, as `load` did, and returns when all of them take requests, warm if asked.

        The pool goes on meanwhile; requests for these devices wait. One that failed, broke or was removed may be
        added again.

        Args:
            devices: As for `load`; ``"all"``: those that the pool does not have. One that is named twice gets twice as
                many sessions.

        Raises:
            InvalidArgument: The pool has one of them already.
            Error: As `load`. After an error none of them is in the pool.
        """
        self._members.add_devices(devices)

    def remove_devices(self, devices: str | int | Device | Iterable[str | int | Device]) -> None:
        """Takes devices out of the pool and frees their sessions and memory, when what runs there has ended.

        What waits for one of them alone fails with `DeviceError`; other requests are not affected. After Ctrl-C they
        get no requests any more; call it again to free them.

        Raises:
            InvalidArgument: The pool does not have one of them, or would have none left that works.
        """
        self._members.remove_devices(devices)

    def replace_model(
        self,
        model: Model,
        *,
        warmup: Warmup | bool | None = None,
        same_interface: bool = True,
        verify: Callable[[Self], object] | None = None,
        version: str = "",
    ) -> None:
        """Puts another model in the place of the pool's, without a gap, and returns when the former one is freed.

        Its sessions are made beside the others, on the same devices and with the same options, and warmed up. Then they
        take over: what was asked for before is answered by the former model, what is asked for from then on by the new
        one. `timeline` is then the new one's.

        Args:
            model: Path of a model, or its bytes.
            warmup: What its sessions run before; default: as `load` was told.
            same_interface: Refuse a model with other inputs or outputs; default True. Names and types must be the same,
                and outputs in the same order. Ranks must be the same, and dimensions that both models fix. An input's
                open dimension must stay open.
            verify: Function that is called before the new sessions take over, with a `Pool` of them alone. If it
                raises, the former model goes on. Use this pool during the call only, and do not close it. `stats`
                counts its requests. Default: none.
            version: Label of the new model in `stats` and in Prometheus's text; default: none.

        Raises:
            InvalidArgument: The model has another interface; the error names the differences. Or ``verify`` closed its
                pool.
            OutOfMemory: There is not enough memory for both.
            Error: As `load`, and what ``verify`` raises. After an error the pool goes on with the model that it had.
        """
        if warmup is not None and not isinstance(warmup, bool | Warmup):
            raise InvalidType(f"warmup is an ortmulti.Warmup or a bool, not {warmup!r}")
        checks.boolean("same_interface", same_interface)
        checks.instance("version", version, str)
        if verify is not None and not callable(verify):
            raise InvalidType(f"verify is a function of a Pool, not {verify!r}")
        check = None if verify is None else lambda members: verify(type(self)(members, self._batch_size))
        self._members.replace_model(checks.model(model), warmup, version, same_interface, check)
