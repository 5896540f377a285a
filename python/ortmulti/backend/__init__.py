"""ONNX's backend interface (`onnx.backend.base`) over ortmulti's sessions, with the names of onnxruntime.backend.

It needs the onnx package and is not imported with ortmulti: ``import ortmulti.backend``.
"""

from ortmulti.backend import backend
from ortmulti.backend.backend import *  # noqa: F403
from ortmulti.backend.backend_rep import OnnxRuntimeBackendRep

__all__ = [*backend.__all__, "OnnxRuntimeBackendRep"]
