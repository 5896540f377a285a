"""ONNX models on every GPU of a host, created at once and off the GIL.

`load` makes one model ready on several devices and returns a `Pool`. The interface of its sessions is onnxruntime's own
(`InferenceSession`, `SessionOptions`, `RunOptions`); `create_sessions` makes them alone. The package opens the ONNX
Runtime library of the installed onnxruntime-gpu or onnxruntime distribution at the first use, not at import; its own
modules too are imported when a name of theirs is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortmulti._core import ModelMetadata, NodeArg, __version__

if TYPE_CHECKING:
    from ortmulti._create.tuning_file import Tuning, TuningWarning
    from ortmulti._runtime.environment import (
        GlobalThreadPools,
        configure,
        disable_telemetry_events,
        enable_telemetry_events,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
    )
    from ortmulti._runtime.module_functions import (
        get_all_providers,
        get_build_info,
        get_device,
        get_version_string,
        preload_dlls,
        print_debug_info,
    )
    from ortmulti._runtime.prewarm import prewarm
    from ortmulti._runtime.startup import get_available_providers
    from ortmulti.arena import ArenaConfig
    from ortmulti.cache.optimize import OptimizedModel, optimize
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
    from ortmulti.io_binding import IOBinding, SessionIOBinding
    from ortmulti.loader import LoaderOptions
    from ortmulti.lora import AdapterFormat, LoraAdapter
    from ortmulti.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
    from ortmulti.ort_device import OrtDevice, OrtDeviceVendorId
    from ortmulti.ort_value_vector import OrtValueVector
    from ortmulti.patch import Patch, patch_onnxruntime
    from ortmulti.pool import Batching, CudaGraph, DeviceStats, Latency, Pool, PoolFuture, PoolStats, Warmup
    from ortmulti.pool.load import load
    from ortmulti.progress import LoadProgress
    from ortmulti.session import InferenceSession, Sessions, create_sessions
    from ortmulti.threads import ThreadCounts, Threads, thread_counts
    from ortmulti.timeline import Span, Timeline
    from ortmulti.tools.diagnose.diagnosis import diagnose_model
    from ortmulti.tools.tune.search_and_confirm import TuneResult, TuningInterrupted, tune
    from ortmulti.values import OrtValue, copy_tensors

__all__ = [
    "AdapterFormat",
    "ArenaConfig",
    "Batching",
    "ClosedError",
    "CudaGraph",
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
    "GlobalThreadPools",
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
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "OrtValueVector",
    "OutOfMemory",
    "Patch",
    "Pool",
    "PoolFuture",
    "PoolStats",
    "QueueFull",
    "RunOptions",
    "RuntimeException",
    "SessionIOBinding",
    "SessionOptions",
    "Sessions",
    "Span",
    "ThreadCounts",
    "Threads",
    "Timeline",
    "TuneResult",
    "Tuning",
    "TuningInterrupted",
    "TuningWarning",
    "Warmup",
    "WeightsError",
    "__version__",
    "configure",
    "copy_tensors",
    "create_sessions",
    "diagnose_model",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "load",
    "optimize",
    "parse_devices",
    "patch_onnxruntime",
    "preload_dlls",
    "prewarm",
    "print_debug_info",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "thread_counts",
    "tune",
]

# Which module defines which names: a module is imported when one of them is first used, so that `import ortmulti` takes
# little time. The imports above, which only type checkers see, say the same.
_NAMES = {
    "_runtime.environment": (
        "GlobalThreadPools",
        "configure",
        "disable_telemetry_events",
        "enable_telemetry_events",
        "set_default_logger_callback",
        "set_default_logger_severity",
        "set_default_logger_verbosity",
        "set_global_thread_pool_sizes",
        "set_seed",
    ),
    "_runtime.module_functions": (
        "get_all_providers",
        "get_build_info",
        "get_device",
        "get_version_string",
        "preload_dlls",
        "print_debug_info",
    ),
    "cache.optimize": ("OptimizedModel", "optimize"),
    "_runtime.prewarm": ("prewarm",),
    "_runtime.startup": ("get_available_providers",),
    "arena": ("ArenaConfig",),
    "devices": ("Device", "parse_devices"),
    "tools.diagnose.diagnosis": ("diagnose_model",),
    "errors": (
        "ClosedError",
        "DeadlineExceeded",
        "DeviceError",
        "DeviceReset",
        "EngineError",
        "EPFail",
        "Error",
        "Fail",
        "ForkError",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "InvalidType",
        "LibraryError",
        "ModelLoadCanceled",
        "ModelLoaded",
        "ModelRequiresCompilation",
        "NoModel",
        "NoSuchFile",
        "NotFound",
        "NotImplemented",
        "NotOptimizable",
        "OutOfMemory",
        "QueueFull",
        "RuntimeException",
        "WeightsError",
    ),
    "io_binding": ("IOBinding", "SessionIOBinding"),
    "loader": ("LoaderOptions",),
    "lora": ("AdapterFormat", "LoraAdapter"),
    "options": ("ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions"),
    "ort_device": ("OrtDevice", "OrtDeviceVendorId"),
    "ort_value_vector": ("OrtValueVector",),
    "patch": ("Patch", "patch_onnxruntime"),
    "pool": ("Batching", "CudaGraph", "DeviceStats", "Latency", "Pool", "PoolFuture", "PoolStats", "Warmup"),
    "pool.load": ("load",),
    "progress": ("LoadProgress",),
    "session": ("InferenceSession", "Sessions", "create_sessions"),
    "threads": ("ThreadCounts", "Threads", "thread_counts"),
    "timeline": ("Span", "Timeline"),
    "tools.tune.search_and_confirm": ("TuneResult", "TuningInterrupted", "tune"),
    "_create.tuning_file": ("Tuning", "TuningWarning"),
    "values": ("OrtValue", "copy_tensors"),
}

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
# Those that can be reached as attributes without being imported by themselves.
_MODULES = frozenset({*(name for name in _NAMES if "." not in name), "provider_options", "providers"})

if not TYPE_CHECKING:  # for whom every name would exist then

    def __getattr__(name):
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"ortmulti.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'ortmulti' has no attribute {name!r}")
        value = getattr(import_module(f"ortmulti.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
