"""A value other than the default of each attribute that onnxruntime's options and ortmulti's both have."""

from __future__ import annotations

from typing import Any

import onnxruntime

SESSION: dict[str, Any] = {
    "enable_cpu_mem_arena": False,
    "enable_mem_pattern": False,
    "enable_profiling": True,
    "execution_mode": onnxruntime.ExecutionMode.ORT_PARALLEL,
    "graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "inter_op_num_threads": 2,
    "intra_op_num_threads": 3,
    "log_severity_level": 3,
    "log_verbosity_level": 1,
    "logid": "é",
    "optimized_model_filepath": "/tmp/optimized.onnx",
    "profile_file_prefix": "a_prefix",
    "use_deterministic_compute": True,
    "use_per_session_threads": False,
}
RUN: dict[str, Any] = {"log_severity_level": 3, "log_verbosity_level": 1, "logid": "a run", "terminate": True}


def plain(value: Any) -> Any:
    """An enumeration's number: onnxruntime's and ours are different classes."""
    return int(value) if hasattr(value, "name") else value
