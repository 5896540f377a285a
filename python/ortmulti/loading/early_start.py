"""The start of the CUDA driver as early as possible: before the modules that a creation needs are imported."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ortmulti import _core, checks
from ortmulti.errors import LibraryError

# Other modules are imported while the driver starts.
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ortmulti.create.loading import Loading
    from ortmulti.create.request import CreationRequest, Share
    from ortmulti.devices.device import Device
    from ortmulti.options.session_options import SessionOptions

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

_MANY = 1 << 15  # GPUs, which no machine has
_waits_at_exit = False


def begin_request(
    plain: bool,
    model: object,
    devices: str | int | Device | Iterable[str | int | Device],
    sessions_per_device: int,
    options: SessionOptions | None,
    provider_options: Mapping[str, Any] | None,
    share: Share | None,
    loading: Loading | None,
    of_pool: bool = False,
) -> CreationRequest:
    """Check the common arguments of `create_sessions` and `load`, and start CUDA and open ONNX Runtime meanwhile.

    Args:
        plain: Whether the call's other arguments need no further check. If they do, nothing starts here.
        of_pool: Whether it is for `load`.

    Raises:
        As `create_sessions`, for these arguments.
    """
    from ortmulti.create.model import Model

    checks.integer("sessions_per_device", sessions_per_device, 1)
    checks.choice("share", share, (None, "host"))
    if loading is not None:
        from ortmulti.create.loading import OF_POOLS, check_loading

        check_loading(loading, () if of_pool else OF_POOLS, "which makes a pool")
    early = plain and options is None and provider_options is None and loading is None
    over_network = isinstance(model, str) and "://" in model
    if early and over_network:
        begin_driver_unchecked(devices)
    checked = Model.of(model)
    if early and not over_network:  # a path that does not exist is an error at once
        begin_driver_unchecked(devices)
    from ortmulti.create.loading import DEFAULT
    from ortmulti.create.request import CreationRequest

    loading = loading or DEFAULT
    request = CreationRequest(checked, devices, sessions_per_device, options, provider_options, share, loading)
    # With wait="first" contexts begin later.
    if plain and loading.tuning is None and loading.wait != "first":
        from ortmulti._runtime import startup

        if loading.strategy == "shared":
            begin_driver(request.named)
        startup.begin_opening()
    return request


def begin_driver_unchecked(devices: object) -> None:
    """Start the driver and the contexts in the background if ``devices`` plainly names GPUs.

    Whatever needs a closer look is left to `begin_driver`, which may be called in any case.

    Args:
        devices: As for `load`.
    """
    if isinstance(devices, str) and devices == "all":
        gpus = None
    else:
        given = list(devices) if isinstance(devices, (list, tuple)) else [devices]
        found = [_index(device) for device in given]
        gpus = [index for index in dict.fromkeys(found) if index is not None]
        if not gpus or None in found:
            return
    if _core.cuda_driver_version() is None:
        return
    global _waits_at_exit
    if not _waits_at_exit:
        import atexit

        atexit.register(_core.shut_down)  # its thread must not outlive the process
        _waits_at_exit = True
    _core.prewarm(gpus)


def begin_for_session(providers: object) -> None:
    """Same as `begin_driver_unchecked` for a session's providers."""
    gpus: list[object] = []
    for provider in providers if isinstance(providers, (list, tuple)) else ():
        name, options = provider if isinstance(provider, tuple) and len(provider) == 2 else (provider, {})
        if name == _CUDA and isinstance(options, dict) and set(options) <= {"device_id"}:
            number = options.get("device_id", 0)
            gpus.append(int(number) if isinstance(number, str) and number.isdecimal() else number)
        elif provider != _CPU:
            return
    begin_driver_unchecked(gpus)


def begin_driver(named: Sequence[Device] | None) -> bool:
    """Start the driver and these devices' contexts in the background; ``named`` comes from `name_devices`.

    Returns:
        Whether there is anything to start; then `open_libraries` is for what else the devices need.
    """
    gpus = indices(named)
    if gpus == [] or _core.cuda_driver_version() is None:
        return False
    from ortmulti._runtime import startup

    startup.close_at_exit()
    _core.prewarm(gpus)
    return True


def open_libraries() -> None:
    """Open ONNX Runtime, and in the background the CUDA libraries."""
    from ortmulti._runtime import startup

    # The CUDA provider's library can be opened in the background only where ONNX Runtime is there.
    with contextlib.suppress(LibraryError):  # the load raises the error
        startup.ensure_open()
    startup.begin_opening_libraries()


def indices(named: Sequence[Device] | None) -> list[int] | None:
    """Return the different GPUs among the devices; None: all."""
    return None if named is None else list(dict.fromkeys(device.index for device in named if device.kind == "cuda"))


def _index(device: object) -> int | None:
    if type(device) is int:
        return device if 0 <= device < _MANY else None
    if type(device) is str:
        kind, _, number = device.partition(":")
        if kind == "cuda" and number.isdecimal() and number.isascii():
            return _index(int(number))
    return None
