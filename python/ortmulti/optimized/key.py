"""The key of a cache entry: the model's content, and all facts on which its optimized form depends."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti._runtime import libraries as _libraries
from ortmulti._runtime.machine import first_processor
from ortmulti._runtime.regular_file import open_regular
from ortmulti.cache.key import FORMAT, CacheKey
from ortmulti.create.empty_files import DATA_FOLDER
from ortmulti.create.model import Model
from ortmulti.devices.device import Device
from ortmulti.devices.providers import Provider
from ortmulti.errors import Fail, InvalidProtobuf, NotOptimizable, WeightsError
from ortmulti.options.model_additions import replacing_weights
from ortmulti.options.session_options import SessionOptions

_INLINE_WEIGHT = 1024
"""Bytes from which on a tensor inside the model file counts as a weight and is not hashed with the graph."""
_BLOCK = 1 << 20
"""Bytes that are hashed at once."""


@dataclass(frozen=True)
class ModelContent:
    """The content of a model.

    Attributes:
        graph: Digest of the model's bytes, without large tensors inside a model file.
        has_weights: Whether there are such tensors. Then the model file's identity belongs to the content.
        model: The model file; None for a model in memory.
        locations: The files of external data as the model names them.
        data: The files themselves, in the same order.
    """

    graph: str
    has_weights: bool
    model: _core.Source | None
    locations: tuple[str, ...]
    data: tuple[_core.Source, ...]

    @property
    def sources(self) -> tuple[_core.Source, ...]:
        """All files of the model: its own, then those of external data."""
        return (self.model, *self.data) if self.model else self.data


def read_content(model: Model, data_folder: str | None) -> ModelContent:
    """Return the content of ``model``.

    Args:
        model: The model.
        data_folder: Where the external data of a model in memory lies.

    Raises:
        NotOptimizable: It is not an ONNX protobuf file, or it has external data outside of its folder or without a
            folder.
        NoSuchFile: A file is missing.
    """
    with model.content() as content:
        source = content if isinstance(content, _core.Source) else None
        if source is not None and source.size == 0:
            raise NotOptimizable(f"the model file {model} is empty")
        graph, has_weights, index = _read_graph(content)
    locations = tuple(map(os.fsdecode, index.external_locations))
    return ModelContent(graph, has_weights, source, locations, tuple(model.external_data(index, data_folder)))


def _read_graph(model: _core.Source | memoryview) -> tuple[str, bool, _core.ModelIndex]:
    try:
        index = _core.index_model(model)
        # Without a file there is no identity that could stand for the tensors inside.
        skipped = inline_weights(index.initializers) if isinstance(model, _core.Source) else []
        digest = digest_without(model, skipped)
    except InvalidProtobuf as error:
        raise NotOptimizable(f"the model is not an ONNX protobuf file: {error}") from error
    except (Fail, WeightsError) as error:
        raise NotOptimizable(f"the model cannot be read: {error}") from error
    return digest, bool(skipped), index


def digest_without(model: _core.Source | memoryview, skipped: Sequence[tuple[int, int]]) -> str:
    """Digest a model's bytes outside of ``skipped``.

    A file is never mapped: a mapping of a file that shrinks would end the process.

    Raises:
        WeightsError: The file cannot be read, is not the identified one, or changed meanwhile.
    """
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(model, memoryview):
        for begin, end in _gaps(skipped, len(model)):
            for start in range(begin, end, _BLOCK):  # Ctrl-C ends it between two blocks
                digest.update(model[start : min(start + _BLOCK, end)])
        return digest.hexdigest()
    try:
        with open_regular(model.name) as file:
            for begin, end in _gaps(skipped, model.size):
                while begin < end and (block := os.pread(file.fileno(), min(end - begin, _BLOCK), begin)):
                    digest.update(block)
                    begin += len(block)
    except OSError as error:
        raise WeightsError(f"the model '{model.name}' cannot be read: {error.strerror}") from error
    model.check()
    return digest.hexdigest()


def inline_weights(initializers: Sequence[_core.Initializer]) -> list[tuple[int, int]]:
    """Return the places of the weights inside a model file."""
    return sorted(
        (tensor.offset, tensor.offset + tensor.length)
        for tensor in initializers
        if tensor.storage == "inline" and tensor.length >= _INLINE_WEIGHT
    )


def _gaps(skipped: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of ``size`` bytes outside of ``skipped``.

    The tensors' lengths lie in these parts, so equal parts of two models are at equal places.
    """
    begin = 0
    for start, end in skipped:
        yield begin, start
        begin = end
    yield begin, size


# Options of providers that say where and with how much memory, not what is computed.
_NO_MATTER = {
    "arena_extend_strategy",
    "device_id",
    "enable_cuda_graph",
    "gpu_mem_limit",
    "has_user_compute_stream",
    "user_compute_stream",
}


def key_of(
    model: Model,
    providers: Sequence[Provider],
    options: SessionOptions | None = None,
    *,
    compute_capability: tuple[int, int] | None = None,
    plugin: dict[str, Any] | None = None,
) -> CacheKey:
    """Return the key of a model's optimized form.

    Args:
        model: The model.
        providers: The session's providers, with their options.
        options: The session's options.
        compute_capability: The compute capability of the providers' GPU.
        plugin: Facts about the device of a plug-in's provider that compiles the model.

    Raises:
        NotOptimizable: The model cannot be optimized and saved.
        NoSuchFile: A file of the model is missing.
    """
    core = _core.SessionOptions() if options is None else options._core
    data_folder = core.config_entries.get(DATA_FOLDER)
    if data_folder is not None and model.path:
        # Releases differ in which of the two they use.
        raise NotOptimizable(f"the model is a path, and {DATA_FOLDER} names another folder for its data")
    if methods := replacing_weights(core):
        raise NotOptimizable(f"the session options have weights of their own ({methods})")
    libraries = [_custom_operators(path, file) for path, file in core.custom_op_libraries]
    read = read_content(model, data_folder)
    counted = read.sources if read.has_weights else read.data
    facts: dict[str, Any] = {
        "format": FORMAT,
        "graph": read.graph,
        "files": [list(read.locations), [source.identity for source in counted]],
        "providers": [
            [name, {key: value for key, value in sorted(given.items()) if key not in _NO_MATTER}]
            for name, given in providers
        ],
        "options": _relevant(core) | ({"custom_op_libraries": libraries} if libraries else {}),
        "onnxruntime": _onnxruntime(),
        "cpu": _cpu(),
        "compute_capability": list(compute_capability) if compute_capability else None,
    }
    if plugin is not None:
        facts["plugin"] = plugin
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
    path = str(Path(model.path).absolute()) if model.path else model.url
    return CacheKey(digest, facts, read.sources, path)


def compute_capability(devices: Iterable[Device]) -> tuple[int, int] | None:
    """Return the compute capability of the GPUs among ``devices``, as `key_of` takes it; None without GPUs.

    Raises:
        NotOptimizable: The GPUs have different ones.
    """
    used = {device.index for device in devices if device.kind == "cuda"}
    if not used:
        return None
    found = {gpu.compute_capability for gpu in _core.cuda_devices() if gpu.index in used}
    if len(found) > 1:
        raise NotOptimizable("the GPUs are of different compute capabilities")
    return next(iter(found), None)


def _relevant(options: _core.SessionOptions) -> dict[str, Any]:
    """Return the options that may change the graph. Threads, memory, log and profile do not."""
    return {
        "graph_optimization_level": options.graph_optimization_level,
        "execution_mode": options.execution_mode,
        "use_deterministic_compute": options.use_deterministic_compute,
        "config_entries": {key: value for key, value in options.config_entries.items() if key != DATA_FOLDER},
        "free_dimensions_by_name": [list(pair) for pair in options.free_dimensions_by_name],
        "free_dimensions_by_denotation": [list(pair) for pair in options.free_dimensions_by_denotation],
    }


def _custom_operators(path: str, loaded: _core.Source | None) -> str:
    if loaded is None:
        raise NotOptimizable(
            f"the library of custom operators cannot be identified: the system's loader has found '{path}' by its name"
        )
    if not loaded.is_current():
        raise NotOptimizable(f"the library of custom operators '{path}' was replaced after it was registered")
    return loaded.identity


def _onnxruntime() -> list[Any]:
    runtime = _libraries.find_onnxruntime()
    if runtime.distribution and runtime.version:
        return [runtime.distribution, runtime.version]
    # A build of the user: its release alone does not identify it.
    return [runtime.version, _core.file_source(str(runtime.path)).identity]


@functools.cache
def _cpu() -> list[str]:
    """Return the processor's model and a digest of its instruction sets: ONNX Runtime lays weights out for them."""
    found = first_processor()
    flags = " ".join(sorted((found.get("flags") or found.get("Features") or "").split()))
    name = found.get("model name") or found.get("CPU part") or ""
    return [platform.machine(), name, hashlib.blake2b(flags.encode(), digest_size=8).hexdigest()]
