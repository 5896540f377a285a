"""ONNX models on every GPU of a host, created at once and off the GIL.

The interface is onnxruntime's own (`InferenceSession`, `SessionOptions`, `RunOptions`), and beside it
`create_sessions`, which makes one model's sessions on several devices at the same time. The package opens the ONNX
Runtime library of the installed onnxruntime-gpu or onnxruntime distribution at the first use, not at import.
"""

from __future__ import annotations

from ortmulti._core import ModelMetadata, NodeArg, __version__
from ortmulti._runtime import get_available_providers
from ortmulti.devices import Device, parse_devices
from ortmulti.errors import (
    ClosedError,
    DeviceError,
    DeviceReset,
    EngineError,
    EPFail,
    Error,
    Fail,
    ForkError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    InvalidType,
    LibraryError,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    OutOfMemory,
    RuntimeException,
)
from ortmulti.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from ortmulti.session import InferenceSession, Sessions, create_sessions
from ortmulti.timeline import Span, Timeline

__all__ = [
    "ClosedError",
    "Device",
    "DeviceError",
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Error",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "ForkError",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "InvalidType",
    "LibraryError",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelMetadata",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotFound",
    "NotImplemented",
    "OutOfMemory",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
    "Sessions",
    "Span",
    "Timeline",
    "__version__",
    "create_sessions",
    "get_available_providers",
    "parse_devices",
]
