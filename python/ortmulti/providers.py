"""Execution providers: which ones a session asks for, and whether this machine can give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ortmulti import _core, _cuda, _libraries, _runtime
from ortmulti.devices import Device, check_devices_exist
from ortmulti.errors import DeviceError, InvalidArgument, InvalidType, LibraryError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

Provider: TypeAlias = tuple[str, dict[str, str]]


def normalize(
    providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
) -> list[Provider]:
    """onnxruntime's two arguments as one list of names and options.

    Args:
        providers: Names, or names with options, the preferred one first; None for every one of the installed
            distribution that this machine can give, which without a GPU is the CPU.
        provider_options: Options of each of ``providers``; only where these are names alone.

    Returns:
        Each provider's name and its options as text; the CPU, which always comes last, only if it was named.

    Raises:
        InvalidArgument: A name that this ONNX Runtime does not know, a duplicate, or lengths that differ.
        InvalidType: Something that is no name, no options or no sequence.
    """
    if providers is None:
        if provider_options is not None:
            raise InvalidArgument("provider_options needs providers, of the same length")
        return [(CUDA, {})] if CUDA in _runtime.get_available_providers() and _cuda.device_count() else [(CPU, {})]
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise InvalidType(f"providers is a sequence of names or of (name, options), not {providers!r}")
    if provider_options is not None:
        if isinstance(provider_options, (str, Mapping)) or not isinstance(provider_options, Sequence):
            raise InvalidType(f"provider_options is a sequence of dicts, not {provider_options!r}")
        if len(providers) != len(provider_options):
            raise InvalidArgument(
                f"provider_options has {len(provider_options)} entries for {len(providers)} providers: give one each"
            )
        if not all(isinstance(provider, str) for provider in providers):
            raise InvalidType("with provider_options, providers holds names alone")
        pairs: list[Any] = list(zip(providers, provider_options, strict=True))
    else:
        pairs = [(provider, {}) if isinstance(provider, str) else provider for provider in providers]

    available = _runtime.get_available_providers()
    result: list[Provider] = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidType(f"providers holds names or (name, options), not {pair!r}")
        name, options = pair
        if not isinstance(options, Mapping):
            raise InvalidType(f"the options of {name} are a dict, not {options!r}")
        if any(name == known for known, _ in result):
            raise InvalidArgument(f"provider {name} is named twice")
        if name not in available:
            raise InvalidArgument(_why_unknown(name, available))
        if name == CPU and options:
            raise InvalidArgument(f"{CPU} has no options, and got {', '.join(map(repr, options))}")
        result.append((name, {str(key): _as_text(value) for key, value in options.items()}))
    return result or [(CPU, {})]


def _as_text(value: object) -> str:
    # ONNX Runtime reads "1" and "0" for every boolean option, and "True" only for some.
    return str(int(value)) if isinstance(value, bool) else str(value)


def _why_unknown(name: str, available: list[str]) -> str:
    message = f"provider {name!r} is not one of this ONNX Runtime's: {', '.join(available)}"
    if name in (CUDA, TENSORRT):
        runtime = _libraries.find_onnxruntime()
        message += f"; {runtime.distribution} {runtime.version} is installed, which has no GPU support: " + (
            f'run `pip uninstall -y {runtime.distribution}` and then `pip install "ortmulti[gpu]"`'
        )
    return message


def for_device(device: Device, provider_options: Mapping[str, Any] | None) -> list[Provider]:
    """The providers of a session on ``device``; ``provider_options`` are those of the CUDA provider, without its
    ``device_id``.

    Raises:
        InvalidArgument: The ONNX Runtime that is installed has no GPU support, or ``provider_options`` names a device.
    """
    if device.kind == "cpu":
        return [(CPU, {})]
    options = dict(provider_options or {})
    if "device_id" in options:
        raise InvalidArgument("provider_options has a device_id: the devices argument says which devices to use")
    return normalize([(CUDA, {"device_id": device.index, **options})], None)


def check_usable(providers: Sequence[Provider]) -> None:
    """Makes sure that this machine can give the providers, so that none is silently left out.

    Raises:
        LibraryError: A CUDA library is missing, or of another major version; the message says what to install.
        DeviceError: There is no such GPU, or no driver, or one too old for this ONNX Runtime's CUDA.
        InvalidArgument: ``device_id`` is no number.
    """
    gpus = [(name, options) for name, options in providers if name in (CUDA, TENSORRT)]
    if not gpus:
        return
    runtime = _libraries.find_onnxruntime()
    problems = _libraries.why_no_cuda(runtime)
    if problems:
        raise LibraryError(f"{gpus[0][0]} cannot be used: {'; '.join(problems)}")
    driver = _core.cuda_driver_version()
    too_old = None if driver is None else _libraries.why_driver_too_old(runtime, driver)
    if too_old:
        raise DeviceError(f"{gpus[0][0]} cannot be used: {too_old}")
    devices = []
    for name, options in gpus:
        text = options.get("device_id", "0")
        if not text.isdecimal():
            raise InvalidArgument(f"device_id of {name} is the number of a GPU, not {text!r}")
        devices.append(Device("cuda", int(text)))
    check_devices_exist(devices)
