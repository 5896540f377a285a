"""onnxruntime's module functions about the library itself."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path

from ortmulti import _core
from ortmulti._runtime import cuda_libraries, startup
from ortmulti._runtime import libraries as _libraries
from ortmulti.errors import InvalidArgument, InvalidType, LibraryError

__all__ = [
    "get_all_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "preload_dlls",
    "print_debug_info",
]

LOGGER = logging.getLogger("ortmulti")

# The preferred ones first.
_PROVIDERS = (
    "NvTensorRTRTX",
    "Tensorrt",
    "CUDA",
    "MIGraphX",
    "ROCM",
    "OpenVINO",
    "Dnnl",
    "VitisAI",
    "QNN",
    "Nnapi",
    "VSINPU",
    "Js",
    "CoreML",
    "ArmNN",
    "ACL",
    "Dml",
    "Rknpu",
    "WebNN",
    "WebGpu",
    "Xnnpack",
    "CANN",
    "Azure",
    "CPU",
)
# The releases in which ONNX Runtime began, or ceased, to list one, from 1.21 on.
_SINCE = {"NvTensorRTRTX": (1, 22)}
_UNTIL = {"ROCM": (1, 24), "ArmNN": (1, 25), "ACL": (1, 32), "NvTensorRTRTX": (1, 32)}


def get_version_string() -> str:
    """Return the release of the ONNX Runtime that ortmulti uses, such as ``"1.31.1"``.

    Raises:
        LibraryError: No ONNX Runtime is installed.
    """
    startup.ensure_library()
    return _core.onnxruntime_version()


def get_build_info() -> str:
    """Return the description of ONNX Runtime's build: branch, commit, flags.

    Raises:
        LibraryError: No ONNX Runtime is installed.
    """
    startup.ensure_library()
    return _core.build_info()


def print_debug_info() -> None:
    """Print the facts for a bug report: releases, ONNX Runtime's path and providers, the CUDA driver.

    ``ortmulti devices`` shows more about GPUs, and names missing CUDA libraries.
    """
    lines = [f"ortmulti {_core.__version__}", f"Python {platform.python_version()} on {platform.platform()}"]
    try:
        lines.append(f"ONNX Runtime {get_version_string()} at {_core.onnxruntime_path()}")
        lines += [get_build_info(), f"Providers: {', '.join(startup.get_available_providers())}"]
    except LibraryError as error:
        lines.append(f"ONNX Runtime: {error}")
    version = _core.cuda_driver_version()
    driver = "none" if version is None else f"for CUDA {version // 1000}.{version % 1000 // 10}"
    lines.append(f"NVIDIA driver: {driver}")
    lines += [f"{name}={os.environ.get(name, '(unset)')}" for name in ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")]
    print("\n".join(lines))


def get_device() -> str:
    """Return the kind of device that the installed ONNX Runtime was built for: ``"GPU"`` with CUDA, else ``"CPU"``.

    It does not check whether the machine has a GPU.

    Raises:
        LibraryError: No ONNX Runtime is installed.
    """
    return "GPU" if "CUDAExecutionProvider" in startup.get_available_providers() else "CPU"


def get_all_providers() -> list[str]:
    """Return the execution providers that this release of ONNX Runtime may be built with, the preferred first.

    Raises:
        LibraryError: No ONNX Runtime is installed.
    """
    release = _libraries.release_of(get_version_string()) or (99, 0)
    return [
        f"{name}ExecutionProvider"
        for name in _PROVIDERS
        if release >= _SINCE.get(name, release) and release < _UNTIL.get(name, (100, 0))
    ]


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | os.PathLike[str] | None = None
) -> None:
    """Open the CUDA libraries that the installed ONNX Runtime's CUDA provider needs.

    ortmulti opens them by itself. Call this to open them earlier, or from another folder. A library that this process
    has already loaded stays as it is. Without a CUDA provider nothing happens. The logger ``ortmulti`` warns of each
    library that is missing or cannot be opened.

    Args:
        cuda: Open the libraries of the CUDA toolkit; default True.
        cudnn: Open cuDNN; default True.
        msvc: No effect on Linux.
        directory: The first folder to search: an absolute path, or one relative to the onnxruntime package. Default, or
            empty: NVIDIA's wheels, PyTorch's folder, and the dynamic loader's paths.

    Raises:
        InvalidArgument: There is no such directory.
        InvalidType: An argument of the wrong type.
        LibraryError: No ONNX Runtime is installed.
    """
    for name, value in (("cuda", cuda), ("cudnn", cudnn), ("msvc", msvc)):
        if not isinstance(value, (bool, int)):
            raise InvalidType(f"{name} is True or False, not {value!r}")
    if directory is not None and not isinstance(directory, (str, os.PathLike)):
        raise InvalidType(f"directory is a path, not {directory!r}")
    runtime = _libraries.find_onnxruntime()
    first = _folder(runtime, os.fspath(directory)) if directory is not None and os.fspath(directory) else None
    if not runtime.has_cuda or not (cuda or cudnn):
        return
    libraries = cuda_libraries.find_cuda_libraries(runtime, first)
    absent = [name for name in (*libraries.missing, *libraries.missing_optional) if _wanted(name, cuda, cudnn)]
    if absent:
        LOGGER.warning(
            "preload_dlls did not find %s for %s; `ortmulti devices` says how to install them",
            ", ".join(absent),
            runtime.path,
        )
    _open([path for path in libraries.found if _wanted(path.name, cuda, cudnn)])


def _folder(runtime: _libraries.OnnxRuntime, directory: str) -> Path:
    package = runtime.capi.parent if runtime.capi is not None else runtime.path.parent
    folder = package / directory
    if not folder.is_dir():
        raise InvalidArgument(f"the directory of preload_dlls does not exist: {folder}")
    return folder


def _wanted(name: str, cuda: bool, cudnn: bool) -> bool:
    return cudnn if name.startswith("libcudnn") else cuda


def _open(paths: list[Path]) -> None:
    import ctypes  # not with `import ortmulti`

    for path in paths:
        try:
            ctypes.CDLL(str(path))  # never closed: ctypes keeps what it opened
        except OSError as error:
            LOGGER.warning("preload_dlls could not open %s: %s", path, error)
