"""Writing of generated models: new files that appear only when they are complete."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

from ortmulti.bench.models._graph import Graph
from ortmulti.bench.models._inputs import require_onnx
from ortmulti.bench.models._onnx import NormalSource, serialize
from ortmulti.errors import Error

SUFFIX = ".partial"


class _Partial(NamedTuple):
    file: BinaryIO
    path: Path
    target: Path


class NewFiles:
    """Files written under temporary names, which take their own names together when all are complete.

    After an error or an interrupt none of them stays. The next process that writes the same files removes those of a
    killed process: a running process holds a lock on its files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._partials: list[_Partial] = []
        self._renamed: list[Path] = []

    def create(self, name: str) -> BinaryIO:
        """Open a new file that will be called `name`.

        Args:
            name: File name in the directory; a file of that name stays as it is until `commit`.

        Returns:
            The file, which this object closes.
        """
        for stale in self._directory.glob(f".{name}.*{SUFFIX}"):
            _remove_if_abandoned(stale)
        while True:
            path = self._directory / f".{name}.{secrets.token_hex(8)}{SUFFIX}"
            file = path.open("xb")
            self._partials.append(_Partial(file, path, self._directory / name))
            # File systems without locks exist; there, files of killed processes stay.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                return file
            # Another process took it for an abandoned one before it was locked.
            file.close()
            self._partials.pop()

    def commit(self) -> None:
        """Rename the files to their own names, in the order of their creation.

        Existing files are first removed in the opposite order. So the last file, if it exists, always belongs to the
        others.
        """
        for partial in self._partials:
            partial.file.flush()
        for partial in reversed(self._partials):
            partial.target.unlink(missing_ok=True)
        for partial in self._partials:
            self._renamed.append(partial.target)
            partial.path.replace(partial.target)
        self._renamed.clear()

    def __enter__(self) -> NewFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for path in self._renamed:
            path.unlink(missing_ok=True)
        for partial in self._partials:
            partial.path.unlink(missing_ok=True)
            with suppress(OSError):  # A full disk: what is still in the buffer is given up with the file.
                partial.file.close()


def _remove_if_abandoned(path: Path) -> None:
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)


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
