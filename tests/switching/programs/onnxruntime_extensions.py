"""onnxruntime-extensions: its operators for strings, and functions that it runs as models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime_extensions
from onnx import TensorProto, helper, numpy_helper

WORDS = np.array(["One model", "on every GPU", "", "Zürich"])


def model() -> bytes:
    """Upper case, and where a pattern was replaced."""
    nodes = [
        helper.make_node("StringUpper", ["words"], ["upper"], domain="ai.onnx.contrib"),
        helper.make_node("StringRegexReplace", ["upper", "pattern", "by"], ["y"], domain="ai.onnx.contrib"),
        helper.make_node("StringLength", ["y"], ["lengths"], domain="ai.onnx.contrib"),
    ]
    constants = {"pattern": r"(\w)M", "by": r"\1-"}
    graph = helper.make_graph(
        nodes,
        "strings",
        [helper.make_tensor_value_info("words", TensorProto.STRING, [None])],
        [
            helper.make_tensor_value_info("y", TensorProto.STRING, [None]),
            helper.make_tensor_value_info("lengths", TensorProto.INT64, [None]),
        ],
        [numpy_helper.from_array(np.array([value], object), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    result: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return result


def outputs(onnxruntime: Any, folder: Path) -> Any:  # noqa: ARG001  # nothing is kept
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    session = onnxruntime.InferenceSession(model(), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"words": WORDS})
    function = onnxruntime_extensions.OrtPyFunction.from_model(onnx.load_from_string(model()), cpu_only=True)
    return [found, list(function(WORDS))]
