"""Execution providers: which ones a session asks for, and whether this machine can give them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ortmulti import _core, checks
from ortmulti._runtime import libraries, startup
from ortmulti.devices import provider_options
from ortmulti.devices.device import Device, check_devices_exist
from ortmulti.devices.provider_options import CPU, CUDA
from ortmulti.errors import DeviceError, InvalidArgument, InvalidType, LibraryError

__all__ = [
    "CPU",
    "CUDA",
    "TENSORRT",
    "Provider",
    "check_device_options",
    "check_usable",
    "for_device",
    "kind_of",
    "normalize",
    "preferred",
]

TENSORRT = "TensorrtExecutionProvider"

Provider: TypeAlias = tuple[str, dict[str, str]]


def normalize(
    providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None,
    options_of_each: Sequence[Mapping[Any, Any]] | None,
) -> list[Provider]:
    """Combine onnxruntime's two arguments into one list of names and options.

    Args:
        providers: Names, or names with options, the preferred one first. None: every provider of the installed
            distribution that works on this machine; without a GPU that is the CPU.
        options_of_each: onnxruntime's ``provider_options``: one dict for each of ``providers``, if these are names
            only.

    Returns:
        Each provider's name and its options as text; the CPU, which always comes last, only if it was named.

    Raises:
        InvalidArgument: This ONNX Runtime does not know a name, a name occurs twice with different options, the lengths
            differ, or an option does not exist.
        InvalidType: An argument is not a sequence, a name not a str, or the options not a dict.
        NotImplemented: As `provider_options.check`.
    """
    if providers is None:
        if options_of_each is not None:
            raise InvalidArgument("provider_options needs providers, of the same length")
        startup.ensure_open()  # which the CUDA provider's library needs, to be opened while CUDA starts
        return preferred()
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise InvalidType(f"providers is a sequence of names or of (name, options), not {providers!r}")
    if options_of_each is not None:
        if isinstance(options_of_each, (str, Mapping)) or not isinstance(options_of_each, Sequence):
            raise InvalidType(f"provider_options is a sequence of dicts, not {options_of_each!r}")
        if len(providers) != len(options_of_each):
            raise InvalidArgument(
                f"provider_options has {len(options_of_each)} entries for {len(providers)} providers: give one each"
            )
        if not all(isinstance(provider, str) for provider in providers):
            raise InvalidType("with provider_options, providers takes names only, not (name, options)")
        pairs: list[Any] = list(zip(providers, options_of_each, strict=True))
    else:
        pairs = [(provider, {}) if isinstance(provider, str) else provider for provider in providers]

    checked: dict[str, dict[str, str]] = {}
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidType(f"providers holds names or (name, options), not {pair!r}")
        name, options = pair
        known = len(checked)
        settings = provider_options.check(name, options, loaded_release)
        if checked.setdefault(name, settings) != settings:
            raise InvalidArgument(
                f"provider {name} is named twice, with the options {checked[name]} and {settings}: name it once"
            )
        if len(checked) == known:
            warnings.warn(f"provider {name} is named twice: the second is ignored", stacklevel=3)
    available = startup.get_available_providers()
    for name in checked:
        if name not in available:
            raise InvalidArgument(_why_unknown(name, available))
    if CUDA in checked and (library := _core.cuda_plugin()):
        from ortmulti.devices.plugins import warn_of_unmatched_cuda  # few programs need it

        warn_of_unmatched_cuda(library)
    return list(checked.items()) or [(CPU, {})]


def check_device_options(options: object, devices: Sequence[Device] | None) -> None:
    """Check the ``provider_options`` of a call that takes devices, without looking for devices.

    They are the CUDA provider's, or those of the plug-in whose devices are named.

    Args:
        options: The argument.
        devices: The named devices; None: all.

    Raises:
        As `provider_options.check`.
        InvalidArgument: They have a ``device_id``, or the devices are of several providers.
    """
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise InvalidType(f"provider_options is a dict of the CUDA provider's options, not {options!r}")
    plugins = sorted({device.kind.partition(":")[0] for device in devices or () if device.is_plugin})
    if plugins:
        on_gpu = ["cuda"] if any(device.kind == "cuda" for device in devices or ()) else []
        if options and len(both := [*on_gpu, *plugins]) > 1:
            raise InvalidArgument(
                f"provider_options are for one provider, but the devices are of {' and '.join(both)}: leave them out, "
                "or call once for each"
            )
        provider_options.check(plugins[0], options, loaded_release)
        return
    if "device_id" in options:
        raise InvalidArgument("provider_options has a device_id: the devices argument says which devices to use")
    provider_options.check(CUDA, options, loaded_release)


def loaded_release() -> str:
    """Return the release of the ONNX Runtime that is open, or will be."""
    return _core.onnxruntime_version() if _core.is_library_open() else libraries.find_onnxruntime().version


def _why_unknown(name: str, available: list[str]) -> str:
    message = f"provider {name!r} is not one of this ONNX Runtime's: {', '.join(available)}"
    if name not in (CUDA, TENSORRT):
        from ortmulti._runtime.module_functions import get_all_providers  # few programs need it

        known = get_all_providers()
        if name in known:
            message += "; name the provider of a plug-in by its device, such as create_sessions(model, 'openvino:CPU')"
        else:  # their ends are the same, so few differences make another name
            message += checks.did_you_mean(name, [*available, *known], cutoff=0.9)
    elif _core.cuda_driver_version() is None:
        message += f"; this machine has {_core.cuda_driver_problem()}: use {CPU!r}, or install the NVIDIA driver first"
    else:
        runtime = libraries.find_onnxruntime()
        message += f"; {runtime.distribution} {runtime.version} is installed, which has no GPU support: " + (
            f'run `pip uninstall -y {runtime.distribution}` and then `pip install "ortmulti[gpu]"`'
        )
    return message


def for_device(device: Device, options: Mapping[str, Any] | None) -> list[Provider]:
    """Return the providers of a session on ``device``; a plug-in's is named by its device, for the core.

    ``options`` are the provider's, already checked by `check_device_options`.

    Raises:
        InvalidArgument: The installed ONNX Runtime has no GPU support.
    """
    if device.kind == "cpu":
        return [(CPU, {})]
    if device.is_plugin:
        return [(str(device), provider_options.check(str(device), options or {}, loaded_release))]
    return normalize([(CUDA, {"device_id": device.index, **(options or {})})], None)


def preferred() -> list[Provider]:
    """Return the default providers: CUDA if the installed distribution and this machine have it, else the CPU."""
    return [(CUDA, {})] if CUDA in startup.get_available_providers() and startup.device_count() else [(CPU, {})]


def kind_of(providers: Sequence[Provider]) -> str:
    """Return the kind of device of the preferred provider: ``"cpu"``, ``"cuda"``, or a provider's name."""
    name = providers[0][0] if providers else CPU
    return {CPU: "cpu", CUDA: "cuda"}.get(name, name)


def check_usable(providers: Sequence[Provider]) -> None:
    """Check that the providers work on this machine. ONNX Runtime would silently leave out one that does not.

    Raises:
        LibraryError: A CUDA library is missing or has another major version; the message says what to install.
        DeviceError: The GPU does not exist, or the driver is missing or too old for this ONNX Runtime's CUDA.
        InvalidArgument: ``device_id`` is not a number.
    """
    gpus = [(name, options) for name, options in providers if name in (CUDA, TENSORRT)]
    if not gpus:
        return
    from ortmulti._runtime import cuda_libraries  # sessions on the CPU do not need it

    runtime = libraries.find_onnxruntime()
    problems = cuda_libraries.why_no_cuda(runtime)
    if problems:
        raise LibraryError(f"{gpus[0][0]} cannot be used: {'; '.join(problems)}")
    driver = _core.cuda_driver_version()
    too_old = None if driver is None else cuda_libraries.why_driver_too_old(runtime, driver)
    if too_old:
        raise DeviceError(f"{gpus[0][0]} cannot be used: {too_old}")
    devices = []
    for name, options in gpus:
        text = options.get("device_id", "0")
        if not text.isdecimal():
            raise InvalidArgument(f"device_id of {name} is the number of a GPU, not {text!r}")
        devices.append(Device("cuda", int(text)))
    check_devices_exist(devices)
