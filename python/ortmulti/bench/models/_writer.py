"""Writing of generated models: new files that appear only when they are complete."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ortmulti.bench.models._graph import Graph
from ortmulti.bench.models._inputs import require_onnx
from ortmulti.bench.models._onnx import NormalSource, serialize
from ortmulti.errors import Error

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that are written and that there are."""

_log = logging.getLogger("ortmulti.bench.models")


class WriteError(Error, OSError):
    """A model could not be written; `errno` has the reason, as in any OSError. None of its files is left."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.errno = code


def model_path(directory: Path, stem: str) -> Path:
    return directory / f"{stem}.onnx"


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
    return model_path(directory, stem) if complete else None


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
    require_onnx()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _check_space(graph, directory, stem)
        with tempfile.TemporaryDirectory(prefix=f".{stem}.", dir=directory) as folder:
            names = _write_files(Path(folder), graph, stem, parameters, seed, progress)
            # The record, the last one, exists only beside the files that belong to it.
            for name in reversed(names):
                (directory / name).unlink(missing_ok=True)
            for name in names:
                (Path(folder) / name).replace(directory / name)
    except WriteError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise WriteError(f"cannot write model {stem} to {directory}: {reason}", error.errno) from error
    path = model_path(directory, stem)
    _log.info("wrote %s: %.1f MB of weights", path, graph.weight_bytes / 1e6)
    return path


def _write_files(
    folder: Path, graph: Graph, stem: str, parameters: dict[str, Any], seed: int, progress: Progress | None
) -> list[str]:
    source = NormalSource(seed)
    sizes = {}
    data_name = f"{stem}.onnx.data"
    layout, data_bytes = graph.external_layout()
    inline_bytes = graph.weight_bytes - sum(weight.nbytes for weight, _ in layout)
    counter = _Counter(graph.weight_bytes, progress)
    if layout:
        with (folder / data_name).open("wb") as data:
            _write_data(data, graph, source, counter)
        sizes[data_name] = data_bytes
    sizes[f"{stem}.onnx"] = (folder / f"{stem}.onnx").write_bytes(serialize(graph, data_name, source))
    counter.add(inline_bytes)
    record = json.dumps({"parameters": parameters, "files": sizes}, indent=2)
    (folder / f"{stem}.json").write_text(f"{record}\n")
    return [*sizes, f"{stem}.json"]


def _write_data(data: BinaryIO, graph: Graph, source: NormalSource, counter: _Counter) -> None:
    end = 0
    for weight, offset in graph.external_layout()[0]:
        data.write(bytes(offset - end))
        for block in source.blocks(weight):
            data.write(block.data.cast("B"))
            counter.add(block.nbytes)
        end = offset + weight.nbytes


def _check_space(graph: Graph, directory: Path, stem: str) -> None:
    needed = graph.weight_bytes
    free = shutil.disk_usage(directory).free
    if needed > free:
        message = (
            f"cannot write model {stem} to {directory}: it needs {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free"
        )
        raise WriteError(f"{message} ({os.strerror(errno.ENOSPC)})", errno.ENOSPC)


class _Counter:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def add(self, count: int) -> None:
        self._done += count
        if self._progress:
            self._progress(self._done, self._total)
