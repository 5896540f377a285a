"""ONNX models on every GPU of a host, created at once and off the GIL.

`load` makes one model ready on several devices and returns a `Pool`. Its sessions have onnxruntime's interface
(`InferenceSession`, `SessionOptions`, `RunOptions`). `create_sessions` returns such sessions without a pool. The
package opens the library of the installed onnxruntime-gpu or onnxruntime distribution at the first use, not at import.
It also imports its own modules at the first use. Type checkers read `__init__.pyi`, which lists the same names.
"""

from __future__ import annotations

from ortmulti._core import __version__ as __version__
from ortmulti._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        __name__: (
            "checks create devices errors interface loading optimized options otel pool ray remote repository "
            "serve text timeline values"
        ),
        "ortmulti._core": "ModelMetadata NodeArg OrtEpDevice OrtHardwareDevice OrtHardwareDeviceType __version__",
        "ortmulti._runtime.module_functions": (
            "get_all_providers get_build_info get_device get_version_string preload_dlls print_debug_info"
        ),
        "ortmulti._runtime.startup": "get_available_providers",
        "ortmulti.bench.diagnose.diagnosis": "diagnose",
        "ortmulti.bench.tune.tuner": "TuneResult TuningInterrupted tune",
        "ortmulti.create.loading": "Loading LoadProgress",
        "ortmulti.create.model": "Model",
        "ortmulti.create.sample_inputs": "example_feed",
        "ortmulti.devices.device": "Device get_devices parse_devices",
        "ortmulti.devices.memory": "GpuMemory gpu_memory",
        "ortmulti.devices.plugins": (
            "get_ep_devices register_execution_provider_library unregister_execution_provider_library"
        ),
        "ortmulti.errors": (
            "ClosedError DeadlineExceeded DeviceError DeviceReset EngineError EPFail Error Fail ForkError "
            "InvalidArgument InvalidGraph InvalidProtobuf InvalidType LibraryError ModelLoadCanceled ModelLoaded "
            "ModelRequiresCompilation NoModel NoSuchFile NotFound NotImplemented NotLoaded NotOptimizable OutOfMemory "
            "QueueFull RuntimeException WeightsError"
        ),
        "ortmulti.interface.io_binding": "IOBinding SessionIOBinding",
        "ortmulti.interface.lora": "AdapterFormat LoraAdapter",
        "ortmulti.interface.patch": "Patch patch_onnxruntime",
        "ortmulti.interface.session": "InferenceSession Sessions",
        "ortmulti.interface.sessions": "create_sessions",
        "ortmulti.loading.prewarm": "prewarm",
        "ortmulti.loading.tuning": "Tuning TuningWarning",
        "ortmulti.optimized.fuse": "FusedModel FusedRun fuse",
        "ortmulti.optimized.optimize": "OptimizedModel optimize",
        "ortmulti.options.arena": "ArenaConfig",
        "ortmulti.options.environment": (
            "GlobalThreadPools configure disable_telemetry_events enable_telemetry_events "
            "set_default_logger_callback set_default_logger_severity set_default_logger_verbosity "
            "set_global_thread_pool_sizes set_seed"
        ),
        "ortmulti.options.session_options": (
            "ExecutionMode ExecutionOrder GraphOptimizationLevel RunOptions SessionOptions"
        ),
        "ortmulti.options.threads": "ThreadCounts Threads thread_counts",
        "ortmulti.pool.answers": "OutputCheck",
        "ortmulti.pool.batching_check": "BatchingCheck",
        "ortmulti.pool.call": "Call",
        "ortmulti.pool.configuration": "Batching CudaGraph Warmup",
        "ortmulti.pool.futures": "PoolFuture RequestTiming",
        "ortmulti.pool.load": "check_batching load",
        "ortmulti.pool.pool": "Pool",
        "ortmulti.pool.rows": "OutputRows RowVerdict",
        "ortmulti.pool.stats": "DeviceStats Histogram Latency PoolStats metrics",
        "ortmulti.repository": (
            "DeviceBudget ModelRepository ModelStats ModelStatus RepositoryModel RepositoryStats Residency"
        ),
        "ortmulti.timeline": "Span Timeline",
        "ortmulti.values.ort_device": "OrtDevice OrtDeviceVendorId",
        "ortmulti.values.ort_value": "OrtValue copy_tensors",
        "ortmulti.values.ort_value_vector": "OrtValueVector",
    },
)
