"""The arguments of a creation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortmulti import _core
from ortmulti.create.loading import DEFAULT, Loading
from ortmulti.devices.device import Device, name_devices
from ortmulti.errors import InvalidArgument, InvalidType

# `load` makes a request before the driver starts, so imports that only some requests need come late.
if TYPE_CHECKING:
    from ortmulti.create.model import Model
    from ortmulti.options.session_options import SessionOptions

Devices: TypeAlias = str | int | Device | Iterable[str | int | Device]
Serialize: TypeAlias = Literal["none", "device", "all"]
Share: TypeAlias = Literal["host"]
Progress: TypeAlias = Callable[[int, int, str], object]


@dataclass(frozen=True)
class CreationRequest:
    """The common arguments of `create_sessions` and `load`, checked as far as possible without a device; the plain ones
    before, by `early_start`.

    Attributes:
        model: The model.
        devices: As `parse_devices` takes them.
        sessions_per_device: 1 or more; default 1.
        options: Options of every session; onnxruntime's own are converted.
        provider_options: Options of the CUDA provider, or of the devices' plug-in.
        share: "host": the weights on GPUs are those of all processes of this user that ask for it.
        loading: How the sessions are made.

    Raises:
        As `create_sessions`, for its arguments.
    """

    model: Model
    devices: Devices = "all"
    sessions_per_device: int = 1
    options: SessionOptions | None = None
    provider_options: Mapping[str, Any] | None = None
    share: Share | None = None
    loading: Loading = DEFAULT

    def __post_init__(self) -> None:
        if self.share is not None and self.loading.strategy != "shared":
            raise InvalidArgument(
                f"share={self.share!r} needs the strategy 'shared', and not {self.loading.strategy!r}"
            )
        named = name_devices(self.devices)
        object.__setattr__(self, "devices", "all" if named is None else named)
        if self.options is not None:
            from ortmulti.options.foreign_options import to_session_options

            object.__setattr__(self, "options", to_session_options(self.options))
            added = core_options(self.options).providers
            if added and named is not None and any(device.kind != "cpu" for device in named):
                raise InvalidArgument(
                    f"the session options have the provider {added[0]} (add_provider_for_devices), but devices names "
                    f"{', '.join(map(str, named))}: use one of the two"
                )
        if self.provider_options is not None:
            from ortmulti.devices import providers

            providers.check_device_options(self.provider_options, named)
            self.check_provider_options(named)

    @property
    def named(self) -> list[Device] | None:
        """The devices, whether they exist or not; None: all."""
        return None if isinstance(self.devices, str) else list(self.devices)  # type: ignore[arg-type]  # as made above

    def check_provider_options(self, devices: list[Device] | None) -> None:
        """Raise if the request has provider options, but no device can use them. ``devices`` is None if not known
        yet.
        """
        if self.provider_options and devices is not None and all(device.kind == "cpu" for device in devices):
            raise InvalidArgument("provider_options are for the CUDA provider, but no device is a GPU: leave them out")


def core_options(options: SessionOptions | None) -> _core.SessionOptions:
    """Return the core's part of checked session options.

    Raises:
        InvalidType: They are not session options.
        InvalidArgument: ONNX Runtime does not have one of their config entries.
    """
    if options is None:
        return _core.SessionOptions()
    from ortmulti.devices import providers
    from ortmulti.options import config_entries
    from ortmulti.options.session_options import SessionOptions

    if not isinstance(options, SessionOptions):
        raise InvalidType(f"session options are an ortmulti.SessionOptions, not {type(options).__name__}")
    config_entries.check_options(options._core, providers.loaded_release)
    return options._core


def without_optimization(options: _core.SessionOptions) -> _core.SessionOptions:
    """Return a copy of the options that leaves the model's graph as it is."""
    from ortmulti.options.session_options import GraphOptimizationLevel

    result: _core.SessionOptions = options.copy()
    result.graph_optimization_level = int(GraphOptimizationLevel.ORT_DISABLE_ALL)
    return result
