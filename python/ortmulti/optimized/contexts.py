"""Models that a plug-in's provider has compiled: kept as cache entries, as ONNX Runtime saves them (EPContext)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti.cache.entries import StagedEntry
from ortmulti.cache.entry import MODEL, PLACEHOLDER, Entry
from ortmulti.cache.key import CacheKey
from ortmulti.create.model import Model
from ortmulti.devices import plugins
from ortmulti.devices.device import Device
from ortmulti.devices.providers import Provider
from ortmulti.errors import NotOptimizable
from ortmulti.optimized.key import key_of
from ortmulti.options.session_options import SessionOptions


def context_key(
    model: Model, providers: Sequence[Provider], options: SessionOptions | None, device: Device
) -> CacheKey:
    """Return the key of a model that was compiled for a plug-in's device.

    Raises:
        NotOptimizable: The sessions' options are about compiled models themselves, or the device is one of OpenVINO's
            meta-devices, which save nothing. Or the plug-in's folder cannot be listed; or as `key_of`.
        Error: As `key_of`, and as `plugins.find`.
    """
    if options is not None and options._core.optimized_model_filepath:
        raise NotOptimizable("optimized_model_filepath asks ONNX Runtime itself to optimize the model")
    for key in () if options is None else options._core.config_entries:
        if key.startswith(("ep.context", "ep.share_ep_contexts", "ep.stop_share_ep_contexts")):
            raise NotOptimizable(f"the session options have the config entry {key}")
    found = plugins.find(str(device))
    if meta := found.ep_metadata.get("ov_meta_device"):
        raise NotOptimizable(f"OpenVINO saves nothing that its meta-device {meta} compiles")
    return key_of(model, providers, options, plugin=_facts(found))


def compiling(staged: StagedEntry) -> dict[str, str]:
    """Return the config entries with which a session saves what its provider compiles, in the staged entry."""
    return {
        "ep.context_enable": "1",
        "ep.context_embed_mode": "0",  # in a file beside the model, which providers may map
        "ep.context_file_path": str(staged.folder / MODEL),
    }


def finish(staged: StagedEntry) -> Entry | None:
    """Turn what a session has saved into an entry that others cannot see yet; None if it has compiled nothing.

    Raises:
        NotOptimizable: A file of the model was changed meanwhile, or the entry cannot be written.
    """
    if not (staged.folder / MODEL).exists():
        return None
    try:
        (staged.folder / PLACEHOLDER).touch()
        files = [path for path in staged.folder.iterdir() if path.is_file()]
        for path in files:
            path.chmod(0o600)
        size = sum(path.stat().st_size for path in files)
        return staged.finish(_core.WeightList(), size)
    except OSError as error:
        raise NotOptimizable(f"the compiled model cannot be written: {error}") from error


def _facts(found: _core.OrtEpDevice) -> dict[str, Any]:
    """Return the facts about a plug-in's device on which a compiled model depends."""
    hardware = found.device
    library = _core.file_source(found._library)
    return {
        "library": library.identity,
        "beside": _libraries_in(Path(library.name).parent),
        "provider": [found.ep_name, sorted(found.ep_metadata.items())],
        "hardware": [int(hardware.type), hardware.vendor_id, hardware.device_id, sorted(hardware.metadata.items())],
    }


def _libraries_in(folder: Path) -> list[list[Any]]:
    """Return the names, sizes and times of the libraries in a plug-in's folder. It may open those of its runtime.

    An archive may have one time of modification for all releases; the time of the last change is another one.
    """
    try:
        with os.scandir(folder) as found:
            states = [(each.name, each.stat(follow_symlinks=False)) for each in found if ".so" in each.name]
    except OSError as error:
        raise NotOptimizable(f"the libraries beside the plug-in cannot be listed: {error}") from error
    return sorted([name, state.st_size, state.st_mtime_ns, state.st_ctime_ns] for name, state in states)
