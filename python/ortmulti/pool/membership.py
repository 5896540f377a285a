"""The devices and the model of a pool: their state, and how to change them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ortmulti import _core, checks
from ortmulti.create.model import Model
from ortmulti.devices.device import Device
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.pool.configuration import Batching, Warmup

if TYPE_CHECKING:
    from typing import Self

    from ortmulti._core import ModelMetadata, NodeArg
    from ortmulti.create.model import ModelLike
    from ortmulti.pool.members import Members
    from ortmulti.pool.rows import RowVerdict

__all__ = ["Membership", "Readiness"]


class Readiness:
    """The part of `Pool`, and of a repository's model, for the model's description and what its devices do."""

    _members: Members
    _batching: Batching | None
    _length: Callable[[Mapping[str, Any]], int] | None
    """The length of a request, where requests are padded."""
    _start: float
    """When the pool was made."""

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs, with ``name``, ``type`` and ``shape``, as `InferenceSession.get_inputs`.

        Waits for the first session. Works after `close`, too, if there was a session.

        Raises:
            ClosedError: The pool was closed before its first session was ready.
            If loading failed before then: the load's error.
        """
        inputs: list[NodeArg] = self._members.description().get_inputs()
        return inputs

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs; otherwise as `get_inputs`."""
        outputs: list[NodeArg] = self._members.description().get_outputs()
        return outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the weights that a request may give, as `InferenceSession.get_overridable_initializers`; otherwise as
        `get_inputs`.
        """
        initializers: list[NodeArg] = self._members.description().get_overridable_initializers()
        return initializers

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata, as `InferenceSession.get_modelmeta`; otherwise as `get_inputs`."""
        metadata: ModelMetadata = self._members.description().get_modelmeta()
        return metadata

    @property
    def batching(self) -> Batching | None:
        """How requests are joined: ``batching`` of `load`."""
        return self._batching

    @property
    def version(self) -> str:
        """Label of the present model; empty without one."""
        return self._members.version

    @property
    def ready(self) -> list[str]:
        """The devices that take requests now, in the order in which they became ready."""
        return [device for device, (state, _) in self._members.core.states().items() if state == "ready"]

    def wait_ready(
        self, timeout: float | None = None, devices: str | int | Device | Iterable[str | int | Device] | None = None
    ) -> list[str]:
        """Wait until devices take requests, and return their names.

        Args:
            timeout: Seconds to wait; default: no limit.
            devices: The devices to wait for; default: all devices of `load`, without failed ones if ``require="any"``.

        Raises:
            DeadlineExceeded: They were not ready within ``timeout``.
            DeviceError: A named device failed, broke or was removed.
            InvalidArgument: A named device is not in the pool.
            ClosedError: The pool was closed. If its load failed, the load's error is raised instead.
        """
        if timeout is not None:
            checks.number("timeout", timeout)
        return self._members.wait_ready(timeout, devices)

    def trim(self, devices: str | int | Device | Iterable[str | int | Device] | None = None) -> None:
        """Give back memory that no run needs now; the pool goes on beside it.

        What ONNX Runtime kept for earlier runs returns to the system or the GPU, as do buffers of the pool's own. What
        runs under way use stays. The next runs take what they need again. A pool does this by itself, too: see
        ``trim_after`` of `load`. CUDA graphs and their memory stay. An answer that you keep holds its part.

        Args:
            devices: Devices of the pool; default: all of them.

        Raises:
            InvalidArgument: The pool has no session on one of the devices.
            ClosedError: The pool is closed.
        """
        self._members.trim(devices)

    def sleep(
        self,
        level: Literal["weights", "session"] = "weights",
        devices: str | int | Device | Iterable[str | int | Device] | None = None,
        *,
        keep: Literal["pinned"] | None = None,
        auto_wake: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Give memory back, and return when others can have it.

        Requests under way are answered first. A later request wakes the device, and waits meanwhile. Requests that
        already wait in the queue wake the devices at once. Outputs are then bit for bit those from before.

        With ``level="weights"`` the sessions stay on the GPU, and so do the weights' addresses. They wake in
        milliseconds, from another GPU of the same `load` that is awake, from a pinned copy in the host's memory, or
        from the model's files. With ``level="session"`` the sessions are closed, on any device.
        To wake the device creates others, as `load` did, with its ``warmup``. `sessions` has them then.

        Args:
            level: What is given back; default ``"weights"``: the GPU memory of the weights. ``"session"``: all memory
                of the sessions. Nothing is done for a device that has given that back already.
            devices: Devices of the pool; default: all of them, for ``"weights"`` all GPUs.
            keep: For ``"weights"``. ``"pinned"``: keep a copy in pinned host memory, from which a GPU wakes at the
                link's rate. The first call makes it and takes longer. It is freed with the sessions. All copies of a
                process together take at most ``ORTMULTI_PINNED_BYTES``. Default: the files are read again.
            auto_wake: Whether a request wakes the devices; default True. Requests for one device wake it. Other
                requests wake all sleeping devices, if none is awake. If False, requests that only sleeping devices
                could answer raise `DeviceError`.
            timeout: Seconds to wait for requests under way; default: no limit.

        Raises:
            DeadlineExceeded: Requests, or runs of `Pool.sessions`, did not end within ``timeout``. The device stays
                awake.
            DeviceError: A device is still starting, failed or broke.
            InvalidArgument: The pool does not have one of the devices, or ``keep`` is given for ``"session"``.
            NotImplemented: The weights cannot be given back by themselves: on the CPU, if sessions have their own
                weights, or without the driver's virtual memory management.
            OutOfMemory: The pinned copy would exceed its limit. The device stays awake.
            WeightsError: For ``"session"``: the model's file was changed or deleted since it was loaded. The device
                stays awake.
        """
        checks.choice("level", level, tuple(_core.sleep_levels))
        checks.choice("keep", keep, ("pinned", None))
        if keep and _core.sleep_levels[level]:
            raise InvalidArgument(f"keep='pinned' is for level='weights': at level={level!r} the files are read again")
        checks.boolean("auto_wake", auto_wake)
        if timeout is not None:
            checks.number("timeout", timeout)
        self._members.sleep(level, devices, keep, auto_wake, timeout)

    def wake(
        self,
        devices: str | int | Device | Iterable[str | int | Device] | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Wake sleeping devices, all at the same time, and return when they take requests.

        Args:
            devices: Devices of the pool; default: all of them. Nothing is done for devices that are awake.
            timeout: Seconds to wait; default: no limit. The wake goes on afterwards.

        Raises:
            DeadlineExceeded: It takes longer than ``timeout``.
            InvalidArgument: The pool does not have one of the devices.
            OutOfMemory: Others use the GPU's memory now. The device sleeps on, and may be woken again.
            WeightsError: A file of the model is missing or has changed. The device sleeps on.
            Error: For ``level="session"``: as `load`. The device sleeps on.
        """
        if timeout is not None:
            checks.number("timeout", timeout)
        self._members.wake(devices, timeout)


class Membership(Readiness):
    """The part of `Pool` for changes of its devices and its model."""

    def __init__(self, members: Members, batching: Batching | None = None) -> None:
        self._members = members
        self._batching = batching
        self._start = time.monotonic()
        self._length = None
        self._rows: RowVerdict | None = None
        """Which outputs have rows, where requests are joined."""

    def _judge_rows(
        self, batching: Batching, tries: Literal["none", "open", "all"] = "open", session_known: bool = True
    ) -> RowVerdict:
        """Find out which outputs of the model have rows. No requests came before."""
        from ortmulti.pool.rows import Rows

        members = self._members
        return Rows(members.source, members.description, members.run_apart, session_known).of_batches(batching, tries)

    def _begin_batching(self, session_known: bool) -> None:
        """Prove padding, and find out which outputs have rows: requests for others run alone from then on. No requests
        came before.

        Args:
            session_known: Whether a session is there. If not, this waits for the first one only where something is run.

        Raises:
            InvalidArgument: As `Batching` says.
        """
        batching = self._batching
        if batching is None:
            return
        self._begin_padding()
        if batching.trust:
            self._members.core.set_outputs(str(self._members.model), {}, set(), False, False)
            return
        from ortmulti.pool.batching_check import BatchingCheck
        from ortmulti.pool.rows import warn

        self._rows = verdict = self._judge_rows(batching, "all" if batching.check else "open", session_known)
        found = BatchingCheck(verdict.checks, verdict)
        if batching.check and (not found.independent or verdict.reasons("unknown")):
            raise InvalidArgument(f"{found}. Load it without batching, or export it so that rows are independent")
        warn(self._members.model, verdict)
        unproven = bool(verdict.checks or verdict.reasons("unknown"))  # not by the graph
        name, random = str(self._members.model), set(verdict.of_random)
        self._members.core.set_outputs(name, verdict.reasons(), random, True, unproven)

    def _begin_padding(self) -> None:
        """Prove what `Batching` says of padding, if anything, and pad from then on. No requests came before.

        Raises:
            InvalidArgument: It does not fit the model, or answers differ.
        """
        batching = self._batching
        if batching is None or batching.pad is None:
            return
        from ortmulti.pool.padding_proof import prove_padding

        padded = prove_padding(self, batching)  # type: ignore[arg-type] # each is a Pool
        self._members.core.set_padding(padded.padding.for_core(padded.axes))
        self._length = padded.padding.about

    def add_devices(self, devices: str | int | Device | Iterable[str | int | Device]) -> None:
        """Load the model on further devices, as `load` did, and return when all of them take requests.

        The pool keeps working; requests for these devices wait. With `load`'s ``warmup`` the new sessions run it first.
        A device that failed, broke or was removed may be added again.

        Args:
            devices: As for `load`; ``"all"``: every device that the pool does not have. A device that is named twice
                gets twice as many sessions.

        Raises:
            InvalidArgument: The pool already has one of the devices.
            Error: As `load`. After an error none of the devices is in the pool.
        """
        self._members.add_devices(devices)

    def remove_devices(self, devices: str | int | Device | Iterable[str | int | Device]) -> None:
        """Remove devices from the pool; free their sessions and memory when their runs have ended.

        Requests that wait for such a device only fail with `DeviceError`; other requests are not affected. After Ctrl-C
        the devices get no more requests; call this again to free them.

        Raises:
            InvalidArgument: The pool does not have one of the devices, or no working device would be left.
        """
        self._members.remove_devices(devices)

    def replace_model(
        self,
        model: ModelLike,
        *,
        warmup: Warmup | bool | None = None,
        same_interface: bool = True,
        verify: Callable[[Self], object] | None = None,
        version: str = "",
    ) -> None:
        """Replace the pool's model without a gap, and return when the old model is freed.

        The new sessions are made beside the old ones, on the same devices and with the same options, and warmed up.
        Then they take over. The old model answers requests from before this moment, the new model all later ones.
        `timeline` then belongs to the new model.

        Args:
            model: As for `load`.
            warmup: What the new sessions run first; default: as in `load`.
            same_interface: Refuse a model with other inputs or outputs; default True. Names and types must be the same,
                and outputs in the same order. Ranks must be the same, and dimensions that both models fix. An input's
                open dimension must stay open.
            verify: Function that is called with a `Pool` of the new sessions before they take over. If it raises or
                returns False, the old model stays. Use this pool only during the call, and do not close it. `stats`
                counts its requests. Default: none.
            version: Label of the new model in `stats` and in Prometheus's text; default: none.

        Raises:
            InvalidArgument: The model has another interface; the error names the differences. Or ``verify`` closed its
                pool. Or the session options have weights of the present model.
            OutOfMemory: The devices have too little memory for both models.
            Error: As `load`, or the error of ``verify``. After an error the pool keeps its model.
        """
        if warmup is not None and not isinstance(warmup, bool | Warmup):
            raise InvalidType(f"warmup is an ortmulti.Warmup or a bool, not {warmup!r}")
        checks.boolean("same_interface", same_interface)
        checks.instance("version", version, str)
        if verify is not None and not callable(verify):
            raise InvalidType(f"verify is a function of a Pool, not {verify!r}")

        def check(members: Members) -> object:
            new = type(self)(members, self._batching)
            new._begin_batching(True)
            return verify is None or verify(new)

        self._members.replace_model(Model.of(model), warmup, version, same_interface, check)
