"""Sources of weights that are written in Python, and a model whose weights only they have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ortmulti
from ortmulti import _core
from ortmulti.create import core_sessions
from tests.support import onnx_models

X = np.random.default_rng(0).random((3, 64), np.float32)
_CPU: list[tuple[str, dict[str, str]]] = [("CPUExecutionProvider", {})]


class Stored:
    """An object of a store in memory, as an object store's client would read it."""

    def __init__(self, store: Mapping[str, bytes], name: str) -> None:
        self.identity, self.content = f"memory://{name}", store[name]
        self.size = len(self.content)
        self.ranges: list[tuple[int, int]] = []

    def read_into(self, buffer: memoryview, offset: int) -> Any:
        self.ranges.append((offset, len(buffer)))
        return self.content[offset : offset + len(buffer)]


class Filling(Stored):
    """Writes into the given buffer."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        buffer[:] = super().read_into(buffer, offset)
        return len(buffer)


class Array(Stored):
    """Returns another object with the buffer protocol."""

    def read_into(self, buffer: memoryview, offset: int) -> Any:
        return np.frombuffer(super().read_into(buffer, offset), np.uint8)


class StoredModel:
    """A model whose weights are in a store, and nowhere else."""

    def __init__(self, folder: Path) -> None:
        model, data = onnx_models.write_external(folder, onnx_models.matmul_proto(64, 3))
        session = onnx_models.cpu_session(model)
        self.path, [self.expected] = str(model), session.run(None, {"x": X})
        self.weights = _core.shareable_weights(self.path).weights
        self.store = {data.name: data.read_bytes()}
        data.write_bytes(b"")  # ONNX Runtime refuses to read a weight from it

    def listed(self, source: Any) -> _core.WeightList:
        weights = [_core.Weight(w.name, w.data_type, w.shape, 0, w.offset, w.length) for w in self.weights]
        return _core.WeightList([source], weights)

    def sessions(self, source: Any, count: int = 1) -> list[_core.Session]:
        options = ortmulti.SessionOptions()
        options.graph_optimization_level = ortmulti.GraphOptimizationLevel.ORT_DISABLE_ALL
        shared = _core.SharedWeights(self.listed(source))
        return core_sessions.create(self.path, [_CPU] * count, options._core, weights=shared)[0]

    def check(self, session: _core.Session) -> None:
        [y] = session.run(None, {"x": X})
        np.testing.assert_array_equal(y, self.expected)
