"""What an optimized model depends on: two models with equal keys have the same optimized form."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti._create.model_additions import replacing_weights
from ortmulti._runtime import libraries as _libraries
from ortmulti.devices import Device
from ortmulti.errors import NoSuchFile, NotOptimizable
from ortmulti.options import SessionOptions
from ortmulti.providers import Provider

from .identity import FileIdentity, read_content

FORMAT = 1
"""Of the entries. Another number gives other keys, so that entries of another format are never found."""

DATA_FOLDER = "session.model_external_initializers_file_folder_path"

# Options of providers that say where and with how much memory, not what is computed.
_NO_MATTER = {
    "arena_extend_strategy",
    "device_id",
    "gpu_mem_limit",
    "has_user_compute_stream",
    "user_compute_stream",
}


@dataclass(frozen=True)
class CacheKey:
    """The name of an optimized model, and what it was made of.

    Attributes:
        digest: The name, from all facts.
        facts: What the optimized model depends on, as JSON can carry it.
        sources: The model's files at the time of the key: its own, unless it came as bytes, then those with its data.
        model: The model's path, for those who list the cache; empty for bytes.
    """

    digest: str
    facts: dict[str, Any]
    sources: tuple[FileIdentity, ...]
    model: str

    def changed_source(self) -> str | None:
        """The first of the model's files that is no longer what it was; None if all are."""
        return next((source.path for source in self.sources if not source.is_current()), None)


def key_of(
    model: str | bytes | bytearray | memoryview,
    providers: Sequence[Provider],
    options: SessionOptions | None = None,
    *,
    compute_capability: tuple[int, int] | None = None,
) -> CacheKey:
    """The key of a model's optimized form.

    Args:
        model: Path, or bytes.
        providers: The session's providers, with their options.
        options: The session's options.
        compute_capability: Of the GPU that the providers use.

    Raises:
        NotOptimizable: The model is none that can be optimized and saved.
        NoSuchFile: A file of the model is missing.
    """
    core = _core.SessionOptions() if options is None else options._core
    data_folder = core.config_entries.get(DATA_FOLDER)
    if data_folder is not None and isinstance(model, str):
        # Releases differ in which of the two they use.
        raise NotOptimizable(f"the model is a path, and {DATA_FOLDER} names another folder for its data")
    if methods := replacing_weights(core):
        raise NotOptimizable(f"the session options have weights of their own ({methods})")
    libraries = [_custom_operators(library) for library in core.custom_op_libraries]
    read = read_content(model, data_folder)
    counted = read.sources if read.has_weights else read.data
    facts: dict[str, Any] = {
        "format": FORMAT,
        "graph": read.graph,
        "files": [list(read.locations), [list(identity) for identity in counted]],
        "providers": [
            [name, {key: value for key, value in sorted(given.items()) if key not in _NO_MATTER}]
            for name, given in providers
        ],
        "options": _relevant(core) | ({"custom_op_libraries": libraries} if libraries else {}),
        "onnxruntime": _onnxruntime(),
        "cpu": _cpu(),
        "compute_capability": list(compute_capability) if compute_capability else None,
    }
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
    path = str(Path(model).absolute()) if isinstance(model, str) else ""
    return CacheKey(digest, facts, read.sources, path)


def compute_capability(devices: Iterable[Device]) -> tuple[int, int] | None:
    """The compute capability of the GPUs among ``devices``, as `key_of` takes it; None without GPUs.

    Raises:
        NotOptimizable: They have different ones.
    """
    used = {device.index for device in devices if device.kind == "cuda"}
    if not used:
        return None
    found = {gpu.compute_capability for gpu in _core.cuda_devices() if gpu.index in used}
    if len(found) > 1:
        raise NotOptimizable("the GPUs are of different compute capabilities")
    return next(iter(found), None)


def _relevant(options: _core.SessionOptions) -> dict[str, Any]:
    """The options that may change the graph. Threads, memory, log and profile do not."""
    return {
        "graph_optimization_level": options.graph_optimization_level,
        "execution_mode": options.execution_mode,
        "use_deterministic_compute": options.use_deterministic_compute,
        "config_entries": {key: value for key, value in options.config_entries.items() if key != DATA_FOLDER},
        "free_dimensions_by_name": [list(pair) for pair in options.free_dimensions_by_name],
        "free_dimensions_by_denotation": [list(pair) for pair in options.free_dimensions_by_denotation],
    }


def _custom_operators(library: tuple[str, int, int, int]) -> list[Any]:
    path, *loaded = library
    try:
        identity = FileIdentity.of(path)
    except NoSuchFile as error:
        # A name alone, which the system's loader has found, or a file that is no longer there.
        raise NotOptimizable(f"the library of custom operators cannot be told from others: {error}") from error
    if list(identity[1:]) != loaded:
        raise NotOptimizable(f"the library of custom operators '{path}' was replaced after it was registered")
    return list(identity)


def _onnxruntime() -> list[Any]:
    runtime = _libraries.find_onnxruntime()
    if runtime.distribution and runtime.version:
        return [runtime.distribution, runtime.version]
    # Somebody's own build: its release alone does not say what it is.
    return [runtime.version, *FileIdentity.of(str(runtime.path))]


@functools.cache
def _cpu() -> list[str]:
    """The processor's model and a digest of its instruction sets: ONNX Runtime lays weights out for them."""
    try:
        # The first processor's lines; the others' would take the kernel milliseconds to write.
        with Path("/proc/cpuinfo").open("rb") as file:
            text = file.read(16384).decode(errors="replace")
    except OSError:
        text = ""
    found = dict(re.findall(r"(?m)^(model name|CPU part|flags|Features)\s*:\s*(.*)$", text.partition("\n\n")[0]))
    flags = " ".join(sorted((found.get("flags") or found.get("Features") or "").split()))
    name = found.get("model name") or found.get("CPU part") or ""
    return [platform.machine(), name, hashlib.blake2b(flags.encode(), digest_size=8).hexdigest()]
