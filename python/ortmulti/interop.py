"""onnxruntime's own sessions over weights that are loaded once, for libraries that need such sessions."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ortmulti import _core, checks, errors
from ortmulti._runtime import startup
from ortmulti.create.model import Model
from ortmulti.create.request import Optimize, core_options
from ortmulti.devices import providers as _providers
from ortmulti.devices.device import Device
from ortmulti.errors import LibraryError, NotOptimizable
from ortmulti.interface.onnxruntime_sessions import create_session, open_package, session_specs
from ortmulti.interface.onnxruntime_weights import (
    SMALL_TYPES,
    GpuWeights,
    MappedWeights,
    NotShared,
    SharedModel,
    Weights,
)
from ortmulti.options.session_options import GraphOptimizationLevel, SessionOptions
from ortmulti.values import onnxruntime_values

if TYPE_CHECKING:
    import onnxruntime

    from ortmulti import optimized

__all__ = ["onnxruntime_sessions"]

LOGGER = logging.getLogger("ortmulti")


def onnxruntime_sessions(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    sessions_per_device: int = 1,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    *,
    optimize: Optimize = "auto",
) -> list[onnxruntime.InferenceSession]:
    """Create `onnxruntime.InferenceSession` objects of one model that share their weights.

    They are ordinary sessions of the onnxruntime package, with its own copy of ONNX Runtime. Libraries that do not need
    such sessions are faster with `load` and `create_sessions`. The last session of a device frees the device's weights.
    While sessions exist, do not change the model's files in place; replacing them by renaming is safe.

    On a GPU all sessions of a device use one copy of the weights, which is read once for all GPUs.

    On the CPU sessions use the weights in the mapped files: all processes share them in the page cache. But ONNX
    Runtime changes the layout of the matrices of most products when it creates a session ("prepacking"), and each
    session has its own copy. If a model consists of such matrices, N sessions take the time and the memory of N
    ordinary ones. There are two ways out. Run one session from several threads, as `load` does; this costs nothing. Or
    set the config entry ``session.disable_prepacking`` to ``"1"`` in ``options``: all weights are shared, and creation
    takes milliseconds. But products then take longer (10 % to 45 % for float32; MatMulNBits up to a hundred times), and
    may differ in the last bits.

    If weights cannot be shared, the sessions are ordinary ones, and the logger ``ortmulti`` warns with the reason.

    Args:
        model: Path of a model, or its bytes; see `InferenceSession`.
        devices: As for `load`.
        sessions_per_device: Sessions on each device; default 1.
        options: An `ortmulti.SessionOptions`, with onnxruntime's attributes and methods. onnxruntime's own options are
            refused, because they cannot be copied for each session.
        provider_options: Options of the CUDA provider, the same for every GPU, without ``device_id``.
        optimize: ``"auto"``: the model is optimized once and kept in the cache. ``"offline"``: it must be in the cache.
            ``"never"``: the model is used as it is, without optimization.

    Returns:
        The sessions, those of the first device first.

    Raises:
        LibraryError: onnxruntime cannot be imported, or is not the release that ortmulti uses.
        InvalidArgument, InvalidType: As `load`.
        NotFound: The cache does not have the optimized model, with ``optimize="offline"``.
        WeightsError: A file of weights cannot be read, or changed during the load.
        NotImplemented: The options have initializers or custom operators; or onnxruntime was built without DLPack, and
            a device is a GPU.
        Fail, RuntimeException, ...: onnxruntime's own errors, under the same names; the message names the device.
    """
    checks.choice("optimize", optimize, ("auto", "never", "offline"))
    checks.instance("options", options, SessionOptions, optional=True)
    specs = session_specs(Model.of(model), devices, sessions_per_device, options, provider_options)
    startup.ensure_open()
    of_device = {spec.device: spec for spec in specs}
    ort = _open_same(list(of_device))

    shared: dict[Device, tuple[SharedModel, Weights]] = {}
    for kind in dict.fromkeys(device.kind for device in of_device):
        same = [device for device in of_device if device.kind == kind]
        first = of_device[same[0]]
        try:
            shared.update(
                _shared(ort, Model(first.model), same, first.providers, options or SessionOptions(), optimize)
            )
        except NotShared as reason:
            LOGGER.warning("onnxruntime's sessions on %s load their own weights: %s", same[0].kind, reason)

    sessions = []
    for spec in specs:
        if spec.device in shared:
            used, weights = shared[spec.device]
            unchanged = {**spec.options, "graph_optimization_level": int(GraphOptimizationLevel.ORT_DISABLE_ALL)}
            sessions.append(create_session(ort, replace(spec, model=used.path, options=unchanged), weights))
        else:
            sessions.append(create_session(ort, spec))
    for used, weights in shared.values():
        for file in used.weights.sources:
            file.check()  # onnxruntime read the graph after the weights were listed
        weights.created()
    return sessions


def _open_same(devices: Sequence[Device]) -> Any:
    """Import the onnxruntime package, and check that it has the release that ortmulti uses."""
    ort = open_package(devices)
    ours = _core.onnxruntime_version()
    if ort.__version__ != ours:
        raise LibraryError(
            f"the onnxruntime package is {ort.__version__}, but ortmulti uses {ours} ({_core.onnxruntime_path()}): "
            "install the same release for both"
        )
    return ort


def _shared(
    ort: Any,
    model: Model,
    devices: Sequence[Device],
    providers: Sequence[_providers.Provider],
    options: SessionOptions,
    optimize: Optimize,
) -> dict[Device, tuple[SharedModel, Weights]]:
    """Return the model for sessions on these devices, all of one kind, and their weights."""
    if options.optimized_model_filepath:
        raise NotShared("optimized_model_filepath is set")
    shared = _find_shared(model, devices, providers, options, optimize)
    if devices[0].kind == "cpu":
        weights = MappedWeights(ort, shared)
        return dict.fromkeys(devices, (shared, weights))
    for weight in shared.weights.weights:
        if weight.data_type in SMALL_TYPES and onnxruntime_values.lacks_types(ort.__version__):
            raise NotShared(
                f"{weight.name!r} has the type {weight.data_type}, which onnxruntime {ort.__version__} does not take "
                "by DLPack"
            )
    if not hasattr(ort.capi._pybind_state.OrtValue, "from_dlpack"):
        raise errors.NotImplemented(
            f"this onnxruntime {ort.__version__} was built without DLPack and cannot use memory of a GPU: install an "
            "onnxruntime-gpu wheel, 1.21 or newer"
        )
    stores = _core.load_weights(_core.SharedWeights(shared.weights), [device.index for device in devices])
    return {device: (shared, GpuWeights(ort, shared, store)) for device, store in zip(devices, stores, strict=True)}


class _Owner:
    """Keeps the files that sessions need."""

    def __init__(self, *kept: object) -> None:
        self._kept = kept


def _find_shared(
    model: Model,
    devices: Sequence[Device],
    providers: Sequence[_providers.Provider],
    options: SessionOptions,
    optimize: Optimize,
) -> SharedModel:
    if optimize == "never" or options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
        if not model.path:
            raise NotShared("the model is in memory and is not optimized")
        return SharedModel(model.path, _core.shareable_weights(model.path))
    from ortmulti import optimized

    wanted = optimized.CacheRequest(model, providers, options, devices)
    try:
        return wanted.find_or_build(
            _take,
            lambda draft: _make_shared(wanted, draft),
            offline=optimize == "offline",
        )
    except NotOptimizable as problem:
        raise NotShared(str(problem)) from problem


def _take(entry: optimized.Entry) -> SharedModel:
    with contextlib.ExitStack() as stack:
        stack.enter_context(entry)
        entry.verify()
        stack.pop_all()
    return SharedModel(entry.model_path, entry.weights, _Owner(entry))


def _make_shared(wanted: optimized.CacheRequest, draft: optimized.StagedEntry) -> SharedModel:
    with contextlib.ExitStack() as stack:
        stack.enter_context(draft)
        entry = wanted.build(draft, lambda entry: (entry, _refused(wanted, entry)))
        published = draft.publish()
        owner = _Owner(published)
        if published is entry:  # it vanishes with the draft, which is kept for the sessions
            weakref.finalize(owner, stack.pop_all().close)
        return SharedModel(published.model_path, published.weights, owner)


def _refused(wanted: optimized.CacheRequest, entry: optimized.Entry) -> list[str]:
    """Return the weights that ONNX Runtime does not take, for example because it plans them on the CPU."""
    from ortmulti.optimized.comparison import over_entry

    # Without their values, since it never runs.
    with over_entry(entry, wanted.providers, core_options(wanted.options), fill=False) as session:
        return list(session.core.weight_use()[1])
