"""ONNX's backend interface (`onnx.backend.base`) over ortmulti's sessions, with the names of onnxruntime.backend.

The tests of the onnx package run through it.
"""

from tests.support.onnx_backend import backend
from tests.support.onnx_backend.backend import *  # noqa: F403
from tests.support.onnx_backend.backend_rep import OnnxRuntimeBackendRep

__all__ = [*backend.__all__, "OnnxRuntimeBackendRep"]
