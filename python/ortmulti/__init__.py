"""ONNX models on every GPU of a host, created at once and off the GIL.

`load` makes one model ready on several devices and returns a `Pool`. The interface of its sessions is onnxruntime's own
(`InferenceSession`, `SessionOptions`, `RunOptions`); `create_sessions` makes them alone. The package opens the ONNX
Runtime library of the installed onnxruntime-gpu or onnxruntime distribution at the first use, not at import.
"""

from __future__ import annotations

from ortmulti._core import ModelMetadata, NodeArg, __version__
from ortmulti._module_functions import get_all_providers, get_device, get_version_string, preload_dlls
from ortmulti._optimize import OptimizedModel, optimize
from ortmulti._prewarm import prewarm
from ortmulti._runtime import get_available_providers
from ortmulti.devices import Device, parse_devices
from ortmulti.errors import (
    ClosedError,
    DeadlineExceeded,
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
    NotOptimizable,
    OutOfMemory,
    QueueFull,
    RuntimeException,
    WeightsError,
)
from ortmulti.io_binding import IOBinding
from ortmulti.loader import LoaderOptions
from ortmulti.lora import AdapterFormat, LoraAdapter
from ortmulti.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from ortmulti.patch import Patch, patch_onnxruntime
from ortmulti.pool import Batching, DeviceStats, Latency, Pool, PoolFuture, PoolStats, Warmup, load
from ortmulti.progress import LoadProgress
from ortmulti.session import InferenceSession, Sessions, create_sessions
from ortmulti.timeline import Span, Timeline
from ortmulti.values import OrtValue

__all__ = [
    "AdapterFormat",
    "Batching",
    "ClosedError",
    "DeadlineExceeded",
    "Device",
    "DeviceError",
    "DeviceReset",
    "DeviceStats",
    "EPFail",
    "EngineError",
    "Error",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "ForkError",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "InvalidType",
    "Latency",
    "LibraryError",
    "LoadProgress",
    "LoaderOptions",
    "LoraAdapter",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelMetadata",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotFound",
    "NotImplemented",
    "NotOptimizable",
    "OptimizedModel",
    "OrtValue",
    "OutOfMemory",
    "Patch",
    "Pool",
    "PoolFuture",
    "PoolStats",
    "QueueFull",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
    "Sessions",
    "Span",
    "Timeline",
    "Warmup",
    "WeightsError",
    "__version__",
    "create_sessions",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "load",
    "optimize",
    "parse_devices",
    "patch_onnxruntime",
    "preload_dlls",
    "prewarm",
]
