"""ONNX's backend interface (`onnx.backend.base`) over ortmulti's sessions, with the names of onnxruntime.backend.

It needs the onnx package and is not imported with ortmulti: ``import ortmulti.backend``.
"""

from ortmulti.backend.backend import (
    OnnxRuntimeBackend,
    is_compatible,
    is_opset_supported,
    prepare,
    run,
    run_model,
    run_node,
    supports_device,
)
from ortmulti.backend.backend_rep import OnnxRuntimeBackendRep

__all__ = [
    "OnnxRuntimeBackend",
    "OnnxRuntimeBackendRep",
    "is_compatible",
    "is_opset_supported",
    "prepare",
    "run",
    "run_model",
    "run_node",
    "supports_device",
]
