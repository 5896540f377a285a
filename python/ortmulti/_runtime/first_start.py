"""The start of the CUDA driver before anything else is imported, for arguments that cannot be wrong."""

from __future__ import annotations

from ortmulti import _core

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

_waits_at_exit = False


def begin_driver(devices: object) -> None:
    """Start the driver and the contexts in the background if ``devices`` plainly names GPUs.

    Whatever needs a closer look is left to `prewarm.begin_driver`, which may be called in any case.

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
    """Same as `begin_driver` for a session's providers."""
    gpus: list[object] = []
    for provider in providers if isinstance(providers, (list, tuple)) else ():
        name, options = provider if isinstance(provider, tuple) and len(provider) == 2 else (provider, {})
        if name == _CUDA and isinstance(options, dict) and set(options) <= {"device_id"}:
            number = options.get("device_id", 0)
            gpus.append(int(number) if isinstance(number, str) and number.isdecimal() else number)
        elif provider != _CPU:
            return
    begin_driver(gpus)


def are_valid(sessions_per_device: object, optimize: object, serialize: object) -> bool:
    """Whether these arguments of a load are of the plain kind that needs no further check."""
    counted = type(sessions_per_device) is int and sessions_per_device > 0
    chosen = optimize in ("auto", "never", "offline") and serialize in (None, "none", "device", "all")
    return counted and chosen


def _index(device: object) -> int | None:
    if type(device) is int:
        return device if device >= 0 else None
    if type(device) is str:
        kind, _, number = device.partition(":")
        if kind == "cuda" and number.isdecimal() and number.isascii():
            return int(number)
    return None
