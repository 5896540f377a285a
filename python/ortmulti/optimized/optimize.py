"""`ortmulti.optimize`: optimize a model before loading it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortmulti._runtime import startup
from ortmulti.create import core_sessions
from ortmulti.create.model import Model
from ortmulti.create.request import core_options
from ortmulti.devices import providers as _providers
from ortmulti.devices.device import Device, name_devices, parse_devices
from ortmulti.errors import Error, InvalidArgument, NotOptimizable
from ortmulti.options.foreign_options import to_session_options
from ortmulti.options.session_options import SessionOptions

if TYPE_CHECKING:
    from ortmulti.optimized import Entry, StagedEntry
    from ortmulti.optimized.comparison import Comparison

__all__ = ["OptimizedModel", "optimize"]


@dataclass(frozen=True)
class OptimizedModel:
    """An optimized model in the cache, as `optimize` made or found it.

    Attributes:
        path: Its folder in the cache.
        device: The device that it was made on.
        made: True if this call made it; False if the cache had it.
        seconds: Time to make or find it, comparison included.
        bytes: Its size on the disk.
        own_bytes: Size of the tensors that the optimization changed or made. The model's files have all others.
        shared: Number of tensors that the sessions of a device share.
        shared_bytes: Their size.
        left_out: The other large tensors, of which each session has its own copy: name and reason.
        compared: True: its outputs for sample inputs equal the model's, bit for bit. None: it was not compared.
        not_compared: Reason why not; empty if it was compared, or was in the cache.
    """

    path: str
    device: str
    made: bool
    seconds: float
    bytes: int
    own_bytes: int
    shared: int
    shared_bytes: int
    left_out: tuple[tuple[str, str], ...]
    compared: bool | None
    not_compared: str


def optimize(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model,
    device: str | int | Device | None = None,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    *,
    compare: bool = True,
    inputs: Mapping[str, Any] | None = None,
) -> OptimizedModel:
    """Optimize a model with ONNX Runtime and put the result into the cache, where `load` finds it.

    The environment variable ``ORTMULTI_CACHE`` names the cache's folder; default: the user's cache folder. The result
    fits only this model, these options, this release of ONNX Runtime and this kind of hardware. So optimize on the
    machine that loads the model, with the same options.

    Args:
        model: Path of a model, or its bytes, see `InferenceSession`; or a `Model`, whose weights come from sources.
        device: ``"cpu"``, a GPU or a plug-in's device. Default: the first GPU, or the CPU on a machine without NVIDIA
            hardware.
        options: Options of the sessions.
        provider_options: Options of the CUDA provider, without ``device_id``; or of the device's plug-in.
        compare: Run the model and its optimized form before publishing it, and compare the outputs bit for bit.
        inputs: Inputs for the comparison: an array for each. Default: random ones that fit the model's declaration.

    Raises:
        NotOptimizable: This model has no optimized form that can be used; the message says why.
        Error: The cache cannot be written. If the model or the device cannot be used at all: as `InferenceSession`.
    """
    from ortmulti.optimized import Cache, build, compute_capability, context_key, key_of
    from ortmulti.optimized import comparison as comparing

    start = time.monotonic()
    checked = Model.of(model)
    options = to_session_options(options)
    given: str | int | Device = "all" if device is None else device
    _providers.check_device_options(provider_options, name_devices(given))
    target = parse_devices(given)[0]
    if provider_options and target.kind == "cpu":
        raise InvalidArgument("provider_options are for the CUDA provider, but the device is the CPU: leave them out")
    providers = _providers.for_device(target, provider_options)
    startup.ensure_open()
    _providers.check_usable(providers)
    cache = Cache.default()
    try:
        if target.is_plugin:
            key = context_key(checked, providers, options, target)
        else:
            key = key_of(checked, providers, options, compute_capability=compute_capability([target]))
        found = cache.find(key, verify=True)
        if found is not None:
            with found:
                return _describe(found, target, start, made=False, comparison=None)
        with cache.stage(key) as staged:
            make = _compile if target.is_plugin else build
            entry = make(staged, checked, providers, options)
            comparison = None
            if compare and target.is_plugin:
                comparison = comparing.Comparison(None, "a plug-in's provider computes in a precision of its own")
            elif compare:
                comparison = comparing.compare(entry, checked, providers, options, inputs)
            elif not target.is_plugin:
                comparing.check_loadable(entry, providers, options)
            with staged.publish() as published:
                if published is entry:
                    raise Error(f"the optimized model cannot be kept in the cache {cache.folder}: see the log")
                return _describe(published, target, start, made=True, comparison=comparison)
    except NotOptimizable:
        _check_ordinary(checked, providers, options)
        raise


def _compile(
    staged: StagedEntry, model: Model, providers: list[_providers.Provider], options: SessionOptions | None
) -> Entry:
    from ortmulti.optimized import compiling, finish

    core = model.with_weights(core_options(options)).copy()
    core.config_entries = {**core.config_entries, **compiling(staged)}
    [session], _ = core_sessions.create(model.graph, [providers], core, logged_as=model.url)
    session.close()
    entry = finish(staged)
    if entry is None:
        raise NotOptimizable(f"the provider of {providers[0][0]} compiles nothing of this model")
    return entry


def _check_ordinary(model: Model, providers: list[_providers.Provider], options: SessionOptions | None) -> None:
    """Raise the error of the model itself, if it has one without any optimization."""
    session, _ = core_sessions.create_native(model, providers, options)
    session.close()


def _describe(
    entry: Entry, device: Device, start: float, *, made: bool, comparison: Comparison | None
) -> OptimizedModel:
    weights = entry.weights.weights
    if comparison is None:
        compared, why_not = None, "it was not asked for" if made else ""
    else:
        compared, why_not = comparison.equal, comparison.reason
    return OptimizedModel(
        path=str(entry.folder),
        device=str(device),
        made=made,
        seconds=time.monotonic() - start,
        bytes=entry.bytes,
        own_bytes=int(entry.facts["own_bytes"]),
        shared=len(weights),
        shared_bytes=sum(weight.length for weight in weights),
        left_out=tuple((one.name, one.reason) for one in entry.weights.left_out),
        compared=compared,
        not_compared=why_not,
    )
