"""Writes a described model: the weights as fast as the disk takes them, a piece at a time."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ortmulti._create.sample_inputs import require_onnx
from ortmulti.errors import Error
from ortmulti.tools.models._files import NewFiles
from ortmulti.tools.models._graph import Graph
from ortmulti.tools.models._onnx import serialize
from ortmulti.tools.models._random import NormalSource

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that are written and that there are."""

_log = logging.getLogger("ortmulti.tools.models")


class WriteError(Error, OSError):
    """A model could not be written; `errno` says why, as in any OSError. Nothing of the model was left behind."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.errno = code


def model_path(directory: Path, stem: str) -> Path:
    return directory / f"{stem}.onnx"


def find_complete(directory: Path, stem: str, parameters: dict[str, Any], data_bytes: int) -> Path | None:
    """The model's path if it is there, whole, and made with these parameters."""
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
    """Writes `stem`.onnx, `stem`.onnx.data if the graph's weights are external, and `stem`.json.

    Args:
        graph: The model.
        directory: Where; made if it does not exist.
        stem: The files' names without their suffixes.
        parameters: What the model was made from; kept in the .json file.
        seed: Of the weights' values.
        progress: Told about every few megabytes.

    Returns:
        Path of the .onnx file.

    Raises:
        WriteError: The disk is too small or full, or the directory cannot be written.
    """
    require_onnx()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _check_space(graph, directory, stem)
        with NewFiles(directory) as files:
            _write_files(files, graph, stem, parameters, seed, progress)
            files.commit()
    except WriteError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise WriteError(f"cannot write model {stem} to {directory}: {reason}", error.errno) from error
    path = model_path(directory, stem)
    _log.info("wrote %s: %.1f MB of weights", path, graph.weight_bytes / 1e6)
    return path


def _write_files(
    files: NewFiles, graph: Graph, stem: str, parameters: dict[str, Any], seed: int, progress: Progress | None
) -> None:
    source = NormalSource(seed)
    sizes = {}
    data_name = f"{stem}.onnx.data"
    layout, data_bytes = graph.external_layout()
    inline_bytes = graph.weight_bytes - sum(weight.nbytes for weight, _ in layout)
    counter = _Counter(graph.weight_bytes, progress)
    if layout:
        data = files.create(data_name)
        _write_data(data, graph, source, counter)
        sizes[data_name] = data_bytes
    model = serialize(graph, data_name, source)
    files.create(f"{stem}.onnx").write(model)
    counter.add(inline_bytes)
    sizes[f"{stem}.onnx"] = len(model)
    record = json.dumps({"parameters": parameters, "files": sizes}, indent=2)
    files.create(f"{stem}.json").write(record.encode() + b"\n")


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
