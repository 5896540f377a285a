"""Sessions on plug-ins' devices that have what their provider has compiled before."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from ortmulti import _core, optimized
from ortmulti.devices.device import Device
from ortmulti.errors import NotFound, NotOptimizable
from ortmulti.loading.creation import Creation

# By the device's name: the model file of its sessions, unless empty, and config entries of the first of them.
_OnDevices = dict[str, tuple[str, dict[str, str]]]


def create_from_compiled(creation: Creation) -> str | None:
    """Create sessions of which those on plug-ins' devices have what their provider has compiled before. Otherwise they
    compile the model, and the result becomes a cache entry. Return why there are no sessions; None: they exist.
    """
    store = optimized.Cache.default()
    found: dict[str, optimized.CacheKey] = {}
    staged: dict[str, optimized.StagedEntry] = {}
    on_devices: _OnDevices = {}
    with contextlib.ExitStack() as stack:
        for device in dict.fromkeys(device for device in creation.devices if device.is_plugin):
            name = str(device)
            try:
                key, entry = _find(creation, store, device)
                if entry is not None:
                    stack.enter_context(entry)
                    found[name] = key
                    on_devices[name] = (entry.model_path, {})
                else:
                    staged[name] = stack.enter_context(store.stage(key))
                    on_devices[name] = ("", optimized.compiling(staged[name]))
            except NotOptimizable as reason:
                creation.note(f"not kept as compiled for {name}: {reason}")
        problem = _create(creation, on_devices)
        if not problem:
            for name, new in staged.items():
                _publish(creation, name, new)
    if not problem:
        return None
    for key in found.values():
        store.discard(key, problem)
    return f"a compiled model cannot be made or loaded: {problem}"


def _find(
    creation: Creation, store: optimized.Cache, device: Device
) -> tuple[optimized.CacheKey, optimized.Entry | None]:
    request = creation.request
    with creation.span("find compiled model"):
        providers = creation.providers[creation.devices.index(device)]
        key = optimized.context_key(request.model, providers, request.options, device)
        entry = store.find(key, verify=True)
    if entry is None and request.loading.optimize == "offline":
        raise NotFound(
            f"there is no compiled form of the model for {device} and these options, and optimize='offline' makes "
            "none: run `ortmulti optimize` first"
        )
    return key, entry


def _create(creation: Creation, on_devices: Mapping[str, tuple[str, dict[str, str]]]) -> str:
    """Create the sessions. Return why those on plug-ins' devices cannot have a compiled model; empty if they do."""
    missing = set(on_devices)

    def have_all(index: int, _: _core.Session) -> bool:
        missing.discard(str(creation.devices[index]))
        return not missing

    problem = creation.run(
        creation.request.model.graph,
        creation.options,
        confirm=have_all if missing else None,
        on_devices=on_devices,
        one_session_each=True,
    )
    if not problem and not creation.confirmed:
        problem = str(creation.failures[0][1])
        creation.drop()
    return problem


def _publish(creation: Creation, device: str, staged: optimized.StagedEntry) -> None:
    try:
        with creation.span("publish compiled model"):
            if optimized.finish(staged) is None:
                creation.note(f"not kept as compiled for {device}: its provider compiles nothing of this model")
            else:
                staged.publish().close()
    except NotOptimizable as problem:
        creation.note(f"not kept as compiled for {device}: {problem}")
