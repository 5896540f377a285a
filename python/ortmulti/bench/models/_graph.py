"""A model as an ONNX graph, with its weights' statistics in place of their bytes, and how its files are written.

A model is described completely before anything is written. So its size is known in advance, and a model larger than
memory is never in memory as a whole. Its files are written whole or not at all.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti.bench.models._inputs import require_onnx
from ortmulti.errors import Error

OPSET = 17
IR_VERSION = 8
ALIGNMENT = 4096
"""External tensors begin at multiples of this many bytes: pages, so that each can be mapped by itself."""

PRECISIONS: dict[str, type[np.generic]] = {"fp16": np.float16, "fp32": np.float32}
"""What weights and activations may be, for the models that let one choose."""

INLINE_BYTES = 1024
"""Tensors up to this size stay in the .onnx file, whatever the model: shapes, axes and scalars."""

TILE = 1 << 22
"""Elements of the tile of random values: 16 MiB of float32. Three scaled copies of it are kept, 64 MiB in all."""

Progress = Callable[[int, int], None]
"""Called with the bytes of weights that are written and that there are."""

_STEM_PARTS: dict[str, str] = {
    "layers": "{}-layers",
    "hidden": "{}-wide",
    "precision": "{}",
    "megabytes": "{}-mb",
    "seed": "seed-{}",
}


class WriteError(Error):
    """A model could not be written. None of its files is left."""


@dataclass(frozen=True)
class Weight:
    """One initializer.

    Attributes:
        values: Its values; or the mean and the standard deviation of those that are drawn when it is written.
        nbytes: Its size.
        offset: Where it begins in the data file; None: it is in the .onnx file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values: tuple[float, float] | NDArray[Any]
    nbytes: int
    offset: int | None


class Graph:
    """The graph under construction; every method that adds something returns the name of the value it makes.

    Args:
        name: the graph's.
        external: whether its weights lie in a file beside the .onnx file.
        dtype: of its weights.

    Attributes:
        weights: every initializer, in the files' order.
        weight_bytes: of all weights together, without padding.
        data_bytes: size of the data file; 0 if the weights are in the .onnx file.
        options: those that the model was built with, and `defaults` the defaults of those that it takes.
        seed: of the weights' values.

    Raises:
        LibraryError: The onnx package is not installed.
    """

    def __init__(self, name: str, *, external: bool = False, dtype: type[np.generic] = np.float32) -> None:
        self.onnx = require_onnx()
        self.name = name
        self.dtype = np.dtype(dtype)
        self.weights: list[Weight] = []
        self.weight_bytes = self.data_bytes = 0
        self.options: Mapping[str, int | str] = {}
        self.defaults: Mapping[str, int | str] = {}
        self.seed = 0
        self._external = external
        self._graph = self.onnx.helper.make_graph([], name, [], [])

    def input(self, name: str, shape: tuple[int | str, ...], dtype: type[np.generic] | None = None) -> str:
        self._graph.input.append(self._value(name, shape, dtype))
        return name

    def output(self, name: str, shape: tuple[int | str, ...]) -> None:
        self._graph.output.append(self._value(name, shape))

    def declare(self, name: str, shape: tuple[int | str, ...]) -> None:
        """Declare the shape of an intermediate value that ONNX's inference does not find."""
        self._graph.value_info.append(self._value(name, shape))

    def _value(self, name: str, shape: tuple[int | str, ...], dtype: type[np.generic] | None = None) -> Any:
        return self.onnx.helper.make_tensor_value_info(name, self.element_type(np.dtype(dtype or self.dtype)), shape)

    def element_type(self, dtype: np.dtype[Any]) -> int:
        """Return ONNX's number of a type."""
        number: int = self.onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return number

    def weight(self, name: str, shape: tuple[int, ...], *, std: float, mean: float = 0.0) -> str:
        return self._add(name, shape, self.dtype, (mean, std))

    def constant(self, name: str, array: NDArray[Any]) -> str:
        return self._add(name, array.shape, array.dtype, array)

    def _add(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], values: tuple[float, float] | NDArray[Any]
    ) -> str:
        offset = None
        size = math.prod(shape) * dtype.itemsize
        self.weight_bytes += size
        if self._external and size > INLINE_BYTES:
            offset = -(-self.data_bytes // ALIGNMENT) * ALIGNMENT
            self.data_bytes = offset + size
        self.weights.append(Weight(name, shape, dtype, values, size, offset))
        return name

    def node(self, op: str, *inputs: str, name: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node with one output. The output has the node's name, or `output`."""
        return self._nodes(op, inputs, [output or f"{name}/output"], name, attributes)[0]

    def split(self, value: str, sizes: str, *, count: int, name: str, axis: int) -> list[str]:
        """Add a Split into `count` parts whose sizes the int64 tensor `sizes` holds."""
        return self._nodes("Split", (value, sizes), [f"{name}/output_{i}" for i in range(count)], name, {"axis": axis})

    def _nodes(
        self, op: str, inputs: tuple[str, ...], outputs: list[str], name: str, more: dict[str, Any]
    ) -> list[str]:
        self._graph.node.append(self.onnx.helper.make_node(op, inputs, outputs, name=name, **more))
        return outputs

    # --- The files ----------------------------------------------------------------------------------------------------

    @property
    def stem(self) -> str:
        """The files' names without suffixes: the model's name and every option that is not the default."""
        defaults = {**self.defaults, "seed": 0}
        chosen = {**self.options, "seed": self.seed}
        parts = [_STEM_PARTS[key].format(value) for key, value in chosen.items() if value != defaults[key]]
        return "-".join([self.name, *parts])

    def find(self, directory: Path) -> Path | None:
        """Return the path of the model in a directory if it is there with all of its data."""
        path, data = directory / f"{self.stem}.onnx", directory / f"{self.stem}.onnx.data"
        there = path.is_file() and (not self.data_bytes or (data.is_file() and data.stat().st_size == self.data_bytes))
        return path if there else None

    def write(self, directory: Path, progress: Progress = lambda _done, _total: None) -> Path:
        """Write the .onnx file, and the .onnx.data file if the weights are external.

        Args:
            directory: Where; made if it does not exist.
            progress: Called every few megabytes.

        Returns:
            Path of the .onnx file.

        Raises:
            WriteError: The disk is too small or full, or the directory cannot be written.
        """
        stem, total = self.stem, self.weight_bytes
        failed = f"cannot write model {stem} to {directory}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if total > (free := shutil.disk_usage(directory).free):
                raise WriteError(f"{failed}: it needs {total / 1e9:.2f} GB and {free / 1e9:.2f} GB are free")
            with tempfile.TemporaryDirectory(prefix=f".{stem}.", dir=directory) as folder:
                names = self._write_files(Path(folder), progress)
                # The model, the last one, exists only beside the data that belong to it.
                (directory / names[-1]).unlink(missing_ok=True)
                for name in names:
                    (Path(folder) / name).replace(directory / name)
        except OSError as error:
            raise WriteError(f"{failed}: {error.strerror or error}") from error
        return directory / f"{stem}.onnx"

    def _write_files(self, folder: Path, progress: Progress) -> list[str]:
        blocks = _random_blocks(self.seed)
        name, data_name, done = f"{self.stem}.onnx", f"{self.stem}.onnx.data", 0
        if self.data_bytes:
            with (folder / data_name).open("wb") as data:
                for weight in self.weights:
                    if weight.offset is not None:
                        data.write(bytes(weight.offset - data.tell()))
                        for block in blocks(weight):
                            data.write(block.data.cast("B"))
                            done += block.nbytes
                            progress(done, self.weight_bytes)
        for weight in self.weights:
            self._graph.initializer.append(self._tensor(weight, data_name, blocks))
        model = self.onnx.helper.make_model(
            self._graph,
            opset_imports=[self.onnx.helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="ortmulti",
        )
        (folder / name).write_bytes(model.SerializeToString(deterministic=True))
        progress(self.weight_bytes, self.weight_bytes)
        return [data_name, name] if self.data_bytes else [name]

    def _tensor(self, weight: Weight, data_name: str, blocks: _Blocks) -> Any:
        """Return an initializer: its values, or where they are in the data file."""
        if weight.offset is None:
            array = np.concatenate(list(blocks(weight))).reshape(weight.shape)
            return self.onnx.numpy_helper.from_array(array, weight.name)
        external = self.onnx.TensorProto.EXTERNAL
        kind = self.element_type(weight.dtype)
        tensor = self.onnx.TensorProto(name=weight.name, data_type=kind, dims=weight.shape, data_location=external)
        for key, value in (("location", data_name), ("offset", weight.offset), ("length", weight.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor


_Blocks = Callable[[Weight], Iterator[NDArray[Any]]]


def _random_blocks(seed: int) -> _Blocks:
    """Return what yields a weight's values in order: flat arrays of at most TILE / 2 elements, not to be written to.

    Normal values depend only on the seed and the tensor's name, not on the order of calls.
    """
    tile = np.random.Generator(np.random.SFC64(seed)).standard_normal(TILE, dtype=np.float32)
    # Conversions to float16 take longer than writing them.
    scaled_tile = lru_cache(maxsize=3)(lambda *scale: _scaled(tile, *scale))

    def blocks(weight: Weight) -> Iterator[NDArray[Any]]:
        if not isinstance(weight.values, tuple):
            yield np.ascontiguousarray(weight.values).reshape(-1)
            return
        scale, elements = (*weight.values, weight.dtype), weight.nbytes // weight.dtype.itemsize
        starts = np.random.Generator(np.random.SFC64([seed, zlib.crc32(weight.name.encode())]))
        for done in range(0, elements, TILE // 2):
            count = min(elements - done, TILE // 2)
            start = int(starts.integers(TILE - count))
            piece = slice(start, start + count)
            # A whole scaled tile would cost more than a small tensor.
            yield scaled_tile(*scale)[piece] if elements >= TILE else _scaled(tile[piece], *scale)

    return blocks


def _scaled(tile: NDArray[np.float32], mean: float, std: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    return (tile * np.float32(std) + np.float32(mean)).astype(dtype, copy=False)
