"""The files of a model: seeded random weights, written whole or not at all."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti.bench.models._graph import Graph, Weight
from ortmulti.errors import Error

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that are written and that there are."""

TILE = 1 << 22
"""Elements of the tile of random values: 16 MiB of float32. Three scaled copies of it are kept, 64 MiB in all."""

_log = logging.getLogger("ortmulti.bench.models")


class WriteError(Error, OSError):
    """A model could not be written; `errno` has the reason, as in any OSError. None of its files is left."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.errno = code


def find_complete(directory: Path, stem: str, parameters: dict[str, Any], data_bytes: int) -> Path | None:
    """Return the model's path if it exists, is complete, and was made with these parameters."""
    try:
        record = json.loads((directory / f"{stem}.json").read_text())
        files: dict[str, int] = record["files"]
        complete = (
            record["parameters"] == parameters
            and files.get(f"{stem}.onnx.data", 0) == data_bytes
            and all((directory / name).stat().st_size == size for name, size in files.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return directory / f"{stem}.onnx" if complete else None


def write(
    graph: Graph,
    directory: Path,
    stem: str,
    parameters: dict[str, Any],
    seed: int,
    progress: Progress | None = None,
) -> Path:
    """Write `stem`.onnx, `stem`.onnx.data if the graph's weights are external, and `stem`.json.

    Args:
        graph: The model.
        directory: Where; made if it does not exist.
        stem: The files' names without their suffixes.
        parameters: The model's parameters, kept in the .json file.
        seed: Of the weights' values.
        progress: Called every few megabytes.

    Returns:
        Path of the .onnx file.

    Raises:
        WriteError: The disk is too small or full, or the directory cannot be written.
    """
    total = graph.weight_bytes
    failed = f"cannot write model {stem} to {directory}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if total > (free := shutil.disk_usage(directory).free):
            reason = f"it needs {total / 1e9:.2f} GB and {free / 1e9:.2f} GB are free ({os.strerror(errno.ENOSPC)})"
            raise WriteError(f"{failed}: {reason}", errno.ENOSPC)
        with tempfile.TemporaryDirectory(prefix=f".{stem}.", dir=directory) as folder:
            names = _write_files(Path(folder), graph, stem, parameters, seed, progress or (lambda _done, _total: None))
            # The record, the last one, exists only beside the files that belong to it.
            for name in reversed(names):
                (directory / name).unlink(missing_ok=True)
            for name in names:
                (Path(folder) / name).replace(directory / name)
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(f"{failed}: {error.strerror or error}", error.errno) from error
    path = directory / f"{stem}.onnx"
    _log.info("wrote %s: %.1f MB of weights", path, total / 1e6)
    return path


def _write_files(
    folder: Path, graph: Graph, stem: str, parameters: dict[str, Any], seed: int, progress: Progress
) -> list[str]:
    random = _Random(seed)
    name, data_name, done, total = f"{stem}.onnx", f"{stem}.onnx.data", 0, graph.weight_bytes
    sizes = {}
    if graph.data_bytes:
        with (folder / data_name).open("wb") as data:
            for weight in graph.weights:
                if weight.offset is not None:
                    data.write(bytes(weight.offset - data.tell()))
                    for block in random.blocks(weight):
                        data.write(block.data.cast("B"))
                        done += block.nbytes
                        progress(done, total)
        sizes[data_name] = graph.data_bytes
    tensors = [_tensor(graph, weight, data_name, random) for weight in graph.weights]
    sizes[name] = (folder / name).write_bytes(graph.serialize(tensors))
    progress(total, total)
    record = json.dumps({"parameters": parameters, "files": sizes}, indent=2)
    (folder / f"{stem}.json").write_text(f"{record}\n")
    return [*sizes, f"{stem}.json"]


def _tensor(graph: Graph, weight: Weight, data_name: str, random: _Random) -> Any:
    """Return an initializer: its values, or where they are in the data file."""
    if weight.offset is None:
        array = np.concatenate(list(random.blocks(weight))).reshape(weight.shape)
        return graph.onnx.numpy_helper.from_array(array, weight.name)
    tensor = graph.onnx.TensorProto(
        name=weight.name,
        data_type=graph.element_type(weight.dtype),
        dims=weight.shape,
        data_location=graph.onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", data_name), ("offset", weight.offset), ("length", weight.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


class _Random:
    """Normal values that depend only on the seed and the tensor's name, not on the order of calls."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._tile = np.random.Generator(np.random.SFC64(seed)).standard_normal(TILE, dtype=np.float32)
        # Conversions to float16 take longer than writing them.
        self._scaled_tile = lru_cache(maxsize=3)(lambda *scale: _scaled(self._tile, *scale))

    def blocks(self, weight: Weight) -> Iterator[NDArray[Any]]:
        """Yield the weight's values in order: flat arrays of at most TILE / 2 elements, not to be written to."""
        if not isinstance(weight.values, tuple):
            yield np.ascontiguousarray(weight.values).reshape(-1)
            return
        scale, elements = (*weight.values, weight.dtype), weight.nbytes // weight.dtype.itemsize
        starts = np.random.Generator(np.random.SFC64([self._seed, zlib.crc32(weight.name.encode())]))
        for done in range(0, elements, TILE // 2):
            count = min(elements - done, TILE // 2)
            start = int(starts.integers(TILE - count))
            piece = slice(start, start + count)
            # A whole scaled tile would cost more than a small tensor.
            yield self._scaled_tile(*scale)[piece] if elements >= TILE else _scaled(self._tile[piece], *scale)


def _scaled(tile: NDArray[np.float32], mean: float, std: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    return (tile * np.float32(std) + np.float32(mean)).astype(dtype, copy=False)
