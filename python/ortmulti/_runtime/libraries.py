"""Find the ONNX Runtime of this Python environment.

This module finds files and reads their headers. It loads nothing and does not import onnxruntime, which would be the
slowest step before loading a model.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ortmulti._runtime.elf import ElfError, read_shared_library
from ortmulti.errors import LibraryError

OVERRIDE = "ORTMULTI_ONNXRUNTIME_LIBRARY"
"""Environment variable: the ONNX Runtime library to use instead of the installed distribution's."""

INSTALL = 'pip install "ortmulti[gpu]" (NVIDIA GPUs) or pip install "ortmulti[cpu]"'
"""What to do where there is no ONNX Runtime."""

OLDEST = (1, 21)
CUDA_PROVIDER = "libonnxruntime_providers_cuda.so"
_CUDA_LIBRARY = re.compile(
    r"(lib(?:cublas|cublasLt|cudart|curand|cufft|cudnn\w*|nvrtc|nvJitLink|cusparse|cusolver))\.so\.[\d.]+"
)


@dataclass(frozen=True)
class OnnxRuntime:
    """An ONNX Runtime that this process can open.

    Attributes:
        path: the library to open.
        version: its release; empty where neither the distribution nor the file's name tells (an override).
        distribution: the Python distribution that it came with ("onnxruntime", "onnxruntime-gpu", ...); empty
            for an override.
        capi: the folder of the Python package that holds it; None for an override.
        provider: the CUDA provider's library, beside it or in the package of a plug-in; None without one.
        cuda_needed: the CUDA libraries that the CUDA provider is linked to, the driver's own (libcuda.so.1) left out.
    """

    path: Path
    version: str
    distribution: str
    capi: Path | None
    provider: Path | None
    cuda_needed: tuple[str, ...]

    @property
    def has_cuda(self) -> bool:
        """Whether there is a CUDA provider's library."""
        return self.provider is not None


def find_onnxruntime() -> OnnxRuntime:
    """Find the ONNX Runtime of this environment, without importing or loading it.

    The environment variable ``ORTMULTI_ONNXRUNTIME_LIBRARY`` names a library to use instead. The answer is kept for
    the life of the process; failures are not, so a program can install it and call this again.

    Returns:
        Its paths and its release.

    Raises:
        LibraryError: None is installed, it is damaged or older than 1.21, or two distributions are installed over each
            other. Or the override's file does not exist. The message says what to do.
    """
    override = os.environ.get(OVERRIDE)
    return _from_override(Path(override)) if override else _from_environment()


@functools.cache
def _from_override(path: Path) -> OnnxRuntime:
    if not path.is_file():
        raise LibraryError(f"{OVERRIDE} is set to {path}, and there is no such file: correct it or unset it")
    real = path.resolve()
    match = re.search(r"\.so\.(\d+\.\d+\.\d+)$", real.name)
    return _inspect(real, match[1] if match else "", "", None)


@functools.cache
def _from_environment() -> OnnxRuntime:
    package = _package_folder()
    if package is None:
        raise LibraryError(f"ONNX Runtime is not installed in this Python environment: {INSTALL}")
    return inspect_package(package)


def _package_folder() -> Path | None:
    module = sys.modules.get("onnxruntime")
    places = getattr(module, "__path__", None)
    if getattr(module, "__name__", "onnxruntime") != "onnxruntime":  # an alias: sys.modules["onnxruntime"] = ortmulti
        spec = importlib.machinery.PathFinder.find_spec("onnxruntime")
        places = spec.submodule_search_locations if spec else None
    elif places is None:
        spec = importlib.util.find_spec("onnxruntime") if module is None else None
        places = spec.submodule_search_locations if spec else None
    if places:
        return Path(next(iter(places)))
    # One of two distributions in one folder was uninstalled: pip believes in the other, and its files are gone.
    return next((package for entry in sys.path if _owners(package := Path(entry) / "onnxruntime")), None)


def inspect_package(package: Path) -> OnnxRuntime:
    """Find the library inside an installed onnxruntime package.

    Args:
        package: the package's folder, ``.../site-packages/onnxruntime``.

    Returns:
        Its paths and its release.

    Raises:
        LibraryError: as `find_onnxruntime`.
    """
    owners = _owners(package)
    if len(owners) > 1:
        names = sorted(owners)
        raise LibraryError(
            f"{' and '.join(f'{name} {owners[name]}' for name in names)} are installed over each other in {package}. "
            f"Each has overwritten files of the other: run pip uninstall -y {' '.join(names)}, then install one: "
            f"{INSTALL}"
        )
    distribution, version = next(iter(owners.items())) if owners else ("", "")
    capi = package / "capi"
    libraries = {path.name.removeprefix("libonnxruntime.so."): path for path in capi.glob("libonnxruntime.so.*")}
    if not libraries:
        if distribution:
            raise LibraryError(
                f"{distribution} {version} is installed in {package}, but its libonnxruntime.so.{version} is missing: "
                f"repair it with pip install --force-reinstall --no-deps {distribution}=={version}, or set {OVERRIDE} "
                f"to an ONNX Runtime library"
            )
        raise LibraryError(
            f"the onnxruntime package in {package} carries no libonnxruntime.so: replace it by {INSTALL}, or set "
            f"{OVERRIDE} to an ONNX Runtime library"
        )
    # An interrupted upgrade can leave another release's library beside the one that belongs here.
    name = version if version in libraries else max(libraries, key=release_of)
    return _inspect(libraries[name], version or name, distribution, capi)


def _inspect(path: Path, version: str, distribution: str, capi: Path | None) -> OnnxRuntime:
    if version and release_of(version) < OLDEST:
        raise LibraryError(
            f"ONNX Runtime {version} ({path}) is too old, ortmulti needs 1.21 or newer: "
            + (f"pip install --upgrade {distribution}" if distribution else f"set {OVERRIDE} to a newer one")
        )
    try:
        library = read_shared_library(path)
    except ElfError as error:
        raise LibraryError(f"the ONNX Runtime library {path} {error}") from error
    if not library.is_native:
        raise LibraryError(f"the ONNX Runtime library {path} is for another processor than this machine's")
    beside = path.parent / CUDA_PROVIDER
    provider = beside if beside.is_file() else _packaged_cuda_provider()
    if provider is None:
        return OnnxRuntime(path, version, distribution, capi, provider=None, cuda_needed=())
    try:
        needed = tuple(name for name in read_shared_library(provider).needed if is_cuda_library(name))
    except ElfError as error:
        raise LibraryError(f"the CUDA provider's library {provider} {error}") from error
    return OnnxRuntime(path, version, distribution, capi, provider=provider, cuda_needed=needed)


PLUGIN_PREFIX = "onnxruntime_ep_"
"""The names of packages with a plug-in of execution providers begin so."""


def plugin_packages() -> list[str]:
    """Return the installed packages of plug-ins, such as ``onnxruntime_ep_openvino``. None is imported."""
    return list(dict.fromkeys(folder.name for folder in _plugin_folders()))


def _plugin_folders() -> Iterator[Path]:
    for entry in sys.path:
        for init in sorted(Path(entry or ".").glob(f"{PLUGIN_PREFIX}*/__init__.py")):
            yield init.parent


def _packaged_cuda_provider() -> Path | None:
    folders = (folder for folder in _plugin_folders() if folder.name.startswith(f"{PLUGIN_PREFIX}cuda"))
    found = (library for folder in folders for library in sorted(folder.glob("libonnxruntime_providers_cuda*.so")))
    return next(found, None)


def is_cuda_library(name: str) -> bool:
    """Return whether a library name is one of the CUDA toolkit's or cuDNN's. The driver's (libcuda.so.1) is not."""
    return _CUDA_LIBRARY.fullmatch(name) is not None


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a release such as ``"1.31.1"``; empty for other texts."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def needs_newer(
    since: Mapping[str, tuple[int, ...] | None], release: Callable[[], str]
) -> tuple[str, tuple[int, ...], str] | None:
    """Return the first name that a later release than the loaded one has, its first release, and the loaded one.

    Args:
        since: The first release of each name; None or an old one: all have it.
        release: Returns ONNX Runtime's release; called only if it matters. Empty: unknown, and it has every name.
    """
    newer = {name: first for name, first in since.items() if first and first > OLDEST}
    loaded = release() if newer else ""
    numbers = release_of(loaded)
    return next(((name, first, loaded) for name, first in newer.items() if numbers and first > numbers), None)


def _owners(package: Path) -> dict[str, str]:
    """Return the distributions whose files lie in a package's folder: name -> release."""
    owners: dict[str, str] = {}
    for info in package.parent.glob("*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        # onnxruntime-genai and others begin with the same name and live in folders of their own.
        if name.startswith(("onnxruntime", "ort_")) and _owns(info, package.name, name):
            owners[re.sub(r"[-_.]+", "-", name).lower()] = version
    return owners


def _owns(info: Path, package: str, name: str) -> bool:
    try:
        record = (info / "RECORD").read_text(errors="replace")
    except OSError:
        # Other installers than pip may leave no list of files.
        return name in ("onnxruntime", "onnxruntime_gpu")
    return re.search(rf"(?m)^\"?{re.escape(package)}/capi/", record) is not None
