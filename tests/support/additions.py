"""Models whose weights session options replace, and such options, this package's and onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import ortmulti
from tests.support import onnx_models

X = np.array([[1, 2]], np.float32)
WEIGHT = np.array([[3, 4], [5, 6]], np.float32)


def product(name: str = "weight0") -> onnx.ModelProto:
    """ "y" = "x" times a matrix of zeros [2, 2] of this name."""
    weight = numpy_helper.from_array(np.zeros((2, 2), np.float32), name)
    return onnx_models.parsed(f"(float[n, 2] x) => (float[n, 2] y) {{ y = MatMul(x, {name}) }}", weight)


MODEL = product().SerializeToString()


@pytest.fixture
def external(tmp_path: Path) -> tuple[Path, Path]:
    """The model with its matrix in a file beside it; both paths."""
    return onnx_models.write_external(tmp_path, product())


def value(array: np.ndarray[Any, Any]) -> ortmulti.OrtValue:
    return ortmulti.OrtValue.ortvalue_from_numpy(array)


def with_initializer(array: np.ndarray[Any, Any] = WEIGHT, name: str = "weight0") -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    options.add_initializer(name, value(array))
    return options


def with_external(array: np.ndarray[Any, Any] = WEIGHT, name: str = "weight0") -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    options.add_external_initializers([name], [value(array)])
    return options


def with_file(content: Any = None, name: str = "model.data") -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    content = WEIGHT.tobytes() if content is None else content
    options.add_external_initializers_from_files_in_memory([name], [content], [WEIGHT.nbytes])
    return options


def run(session: Any) -> Any:
    return session.run(None, {"x": X})[0]


ORT_WEIGHT = onnxruntime.OrtValue.ortvalue_from_numpy(WEIGHT)
BYTES = WEIGHT.tobytes()  # onnxruntime keeps nothing alive

# What ours and onnxruntime's options are given, for the model with external data.
ADDED = {
    "initializer": (with_initializer, lambda o: o.add_initializer("weight0", ORT_WEIGHT)),
    "external": (with_external, lambda o: o.add_external_initializers(["weight0"], [ORT_WEIGHT])),
    "file": (
        with_file,
        lambda o: o.add_external_initializers_from_files_in_memory(["model.data"], [BYTES], [WEIGHT.nbytes]),
    ),
}


# --- Large values for a model in memory -------------------------------------------------------------------------------

SIDE = 512  # a value of 1 MiB
LARGE = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
LARGE_X = np.random.default_rng(1).random((2, SIDE), np.float32)
WIDE = np.random.default_rng(2).random((SIDE, 2 * SIDE), np.float32)


def large_values(*, wide: bool) -> dict[str, np.ndarray[Any, Any]]:
    return {"large": LARGE, "small": LARGE[0]} | ({"wide": WIDE} if wide else {})


def large_graph(
    location: str = "large.data", other: str | None = None, *, transposed: bool = False, wide: bool = False
) -> bytes:
    """ "y" = "x" times "large", or its transpose, plus "small", times "wide". These are external data of a file that is
    nowhere, or "large" of one and the rest of the other.
    """
    initializers = []
    for name, array in large_values(wide=wide).items():
        tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=onnx.TensorProto.FLOAT)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        file = location if other is None or name == "large" else other
        for key, entry in {"location": file, "offset": "0", "length": str(array.nbytes)}.items():
            tensor.external_data.add(key=key, value=entry)
        initializers.append(tensor)
    nodes = [helper.make_node("MatMul", ["x", "turned" if transposed else "large"], ["product"])]
    if transposed:
        nodes.insert(0, helper.make_node("Transpose", ["large"], ["turned"]))
    nodes.append(helper.make_node("Add", ["product", "small"], ["sum" if wide else "y"]))
    if wide:
        nodes.append(helper.make_node("MatMul", ["sum", "wide"], ["y"]))
    x: onnx_models.Value = ("x", int(onnx.TensorProto.FLOAT), ["n", SIDE])
    y: onnx_models.Value = ("y", int(onnx.TensorProto.FLOAT), ["n", WIDE.shape[1] if wide else SIDE])
    return onnx_models.model(nodes, [x], [y], initializers).SerializeToString()


def with_large(array: np.ndarray[Any, Any] = LARGE, *, wide: bool = False) -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    given = large_values(wide=wide) | {"large": array}
    options.add_external_initializers(list(given), [value(each) for each in given.values()])
    return options


def of_onnxruntime_alone(model: bytes, provider: str = "CPUExecutionProvider", *, wide: bool = False) -> Any:
    options = onnxruntime.SessionOptions()
    given = large_values(wide=wide)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in given.values()]
    options.add_external_initializers(list(given), values)
    return onnxruntime.InferenceSession(model, options, providers=[provider]).run(None, {"x": LARGE_X})[0]
