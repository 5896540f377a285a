"""onnxruntime's own tools in Python: quantization, whose calibration runs sessions, on a small network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static


class Data(CalibrationDataReader):
    """Eight batches of random numbers."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self._batches = iter([{"x": random.normal(size=(2, 3, 16, 16)).astype(np.float32)} for _ in range(8)])

    def get_next(self) -> Any:
        return next(self._batches, None)


def prepare(folder: Path) -> None:
    random = np.random.default_rng(0)
    weights = {"k": random.normal(size=(8, 3, 3, 3)), "w": random.normal(size=(8, 10)), "b": random.normal(size=10)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Gemm", ["f", "w", "b"], ["y"]),
        ],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "network.onnx")


def outputs(onnxruntime: Any, folder: Path) -> Any:
    results: list[Any] = []
    quantize_static(folder / "network.onnx", folder / "static.onnx", Data(), per_channel=True)
    quantize_dynamic(folder / "network.onnx", folder / "dynamic.onnx", weight_type=QuantType.QUInt8)
    for name in ("network", "static", "dynamic"):
        path = folder / f"{name}.onnx"
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feeds = [session.run(None, batch) for batch in iter(Data().get_next, None)]
        results.append([path.read_bytes(), feeds])
    return results
