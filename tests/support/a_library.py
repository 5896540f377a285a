"""What a library that constructs onnxruntime's sessions looks like, for the tests of patch_onnxruntime."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
from onnxruntime import InferenceSession
from onnxruntime.capi import onnxruntime_inference_collection as collection
from onnxruntime.capi import onnxruntime_pybind11_state as state

EARLY_SESSION = InferenceSession


def late(model: bytes) -> Any:
    """By the name in the module, as most libraries do."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])
    assert isinstance(session, ort.InferenceSession)
    return session


def imported_in_the_call(model: bytes) -> Any:
    from onnxruntime import InferenceSession as Session

    return Session(model, providers=["CPUExecutionProvider"])


def from_the_collection(model: bytes) -> Any:
    return collection.InferenceSession(model, providers=["CPUExecutionProvider"])


def early(model: bytes) -> Any:
    """By a name that was taken out of the module before."""
    return EARLY_SESSION(model, providers=["CPUExecutionProvider"])


def is_refused(model: bytes, options: Any = None) -> bool:
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except state.InvalidProtobuf:
        return True
    return False


def run(session: Any, feeds: Any) -> Any:
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return session.run(None, feeds, options)
