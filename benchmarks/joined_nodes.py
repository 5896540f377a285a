"""Are joined answers right for the operators of the onnx package's node tests?

    python -m benchmarks.joined_nodes --json nodes.json

Each model of a node test gets an open dimension 0: of the first input, and of others of as many entries there. What
else the test feeds becomes a constant, such as axes and shapes. Requests are the first rows of the test's own inputs,
also negative, of one sign, large and in another order. The truth, the pool and what is counted are those of
`joined_graphs`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.joined_answers import Feed
from benchmarks.joined_graphs import JoinedGraphs, Measurement, summarize
from ortmulti.bench import script
from ortmulti.bench.script import Script, option

MOST_ROWS = 3


def open_models(only: str = "") -> Iterator[tuple[str, bytes, list[Feed]]]:
    """Yield the names and the models of node tests with an open dimension 0, and requests for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of the tests' values
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    for case in cases:
        if case.data_sets is None or case.model is None:
            continue
        inputs = case.data_sets[0][0]
        names = [value.name for value in case.model.graph.input]
        arrays = dict(zip(names, inputs, strict=False))
        usual = all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in arrays.values())
        if only not in case.name or len(names) != len(inputs) or not names or not usual or not arrays[names[0]].ndim:
            continue
        size = len(arrays[names[0]])
        rows = [name for name in names if arrays[name].ndim and len(arrays[name]) == size]
        if size:
            yield case.name, _opened(case.model, arrays, rows), _requests({name: arrays[name] for name in rows})


def _opened(model: Any, arrays: dict[str, Any], rows: list[str]) -> bytes:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    constants = [value for value in graph.input if value.name not in rows]
    for value in constants:
        graph.input.remove(value)
        graph.initializer.append(numpy_helper.from_array(arrays[value.name], value.name))
    for value in graph.input:
        if dimensions := value.type.tensor_type.shape.dim:  # some declare none
            dimensions[0].dim_param = "N"
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    return bytes(changed.SerializeToString())


def _requests(arrays: Feed) -> list[Feed]:
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda value: value,
        lambda value: -value if value.dtype.kind == "f" else value,
        lambda value: np.abs(value) if value.dtype.kind == "f" else value,
        lambda value: value * 100 if value.dtype.kind == "f" else value,
        lambda value: value[::-1],
        lambda value: np.zeros_like(value) if value.dtype.kind == "f" else value,
    )
    size = min(MOST_ROWS, *(len(value) for value in arrays.values()))
    return [
        {name: np.ascontiguousarray(change(value)[:rows]).astype(value.dtype) for name, value in arrays.items()}
        for rows in range(1, size + 1)
        for change in changes
    ]


@dataclass
class JoinedNodes(Script[str]):
    """The options of the command line."""

    kind = "joined nodes"
    tests: str = option("", "tests with this in their names")

    def cases(self, number: int = 0) -> Sequence[str]:
        return ("nodes",)

    def measure(self, case: str, number: int) -> dict[str, Any]:
        measurement = Measurement()
        return summarize([
            measurement.judge(model, requests, {"seed": number, "parts": [name]})
            for number, (name, model, requests) in enumerate(open_models(self.tests))
        ])  # fmt: skip

    complaints = JoinedGraphs.complaints


if __name__ == "__main__":
    sys.exit(script.main(JoinedNodes))
