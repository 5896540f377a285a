"""The places of the CUDA libraries that ONNX Runtime's CUDA provider needs, and the reasons if some cannot be used.

NVIDIA's Python wheels put them under ``site-packages/nvidia/``, where the dynamic loader does not look. If they are
opened first by path, the provider finds them by name.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ortmulti._runtime.elf import ElfError, SharedLibrary, read_shared_library
from ortmulti._runtime.libraries import CUDA_PROVIDER, OnnxRuntime, is_cuda_library

_RUN_TIME_USES = {
    "libcudnn": "convolution, pooling, normalization and recurrent operators",
    "libcufft": "Fourier transforms (Rfft, Irfft)",
    "libnvrtc": "kernels that cuDNN compiles at run time",
}


def cuda_major(runtime: OnnxRuntime) -> int | None:
    """Return the CUDA release that an ONNX Runtime's CUDA provider is built for: 12, 13, ...; None without one."""
    for name in runtime.cuda_needed:
        if match := re.fullmatch(r"libcudart\.so\.(\d+)[.\d]*", name):
            return int(match[1])
    return None


@dataclass(frozen=True)
class CudaLibraries:
    """The CUDA libraries for one ONNX Runtime.

    Attributes:
        found: the files to open, each after those that it depends on.
        missing: names of libraries without which the CUDA provider cannot be loaded.
        sources: for each of `found`: "loaded" (already in this process), "first" (the caller's folder), "nvidia"
            (NVIDIA's wheels), "torch" (PyTorch's folder) or "system" (the system's loader).
        missing_optional: names of missing libraries that the provider opens when an operator first needs them.
        unusable: files of the right name that were passed over, with the reason.
    """

    found: tuple[Path, ...]
    missing: tuple[str, ...]
    sources: tuple[str, ...] = ()
    missing_optional: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()


_complete: dict[OnnxRuntime, CudaLibraries] = {}


def find_cuda_libraries(runtime: OnnxRuntime, first: Path | None = None) -> CudaLibraries:
    """Find the CUDA libraries that an ONNX Runtime's CUDA provider needs.

    The order is: libraries that this process has already loaded, NVIDIA's wheels, PyTorch's folder. Other libraries are
    opened by name, so the system's loader searches its own places. The process keeps the answer once nothing is
    missing.

    Args:
        runtime: what `find_onnxruntime` gave.
        first: a folder that comes right after already loaded libraries.

    Returns:
        The files in the order of opening, and the missing ones. Both are empty for an ONNX Runtime without CUDA.
    """
    libraries = None if first else _complete.get(runtime)
    if libraries is None:
        libraries = CudaSearch(_site_folders(runtime), first=first).find(runtime)
        if not first and not libraries.missing and not libraries.missing_optional:
            _complete[runtime] = libraries
    return libraries


def why_no_cuda(runtime: OnnxRuntime, search: CudaSearch | None = None) -> tuple[str, ...]:
    """Return the missing or unusable libraries because of which the CUDA provider cannot be loaded.

    Args:
        runtime: what `find_onnxruntime` gave.
        search: where to look; None for this environment.

    Returns:
        Sentences: the reasons, and at last the remedy. Empty if all libraries are in place.
    """
    if not runtime.has_cuda:
        if not runtime.distribution:
            return (f"{CUDA_PROVIDER} is missing beside {runtime.path}: take an ONNX Runtime built with CUDA",)
        if runtime.distribution == "onnxruntime-gpu":
            return (
                f"onnxruntime-gpu {runtime.version} is installed, but {runtime.path.with_name(CUDA_PROVIDER)} is "
                f"missing: repair it with pip install --force-reinstall --no-deps onnxruntime-gpu=={runtime.version}",
            )
        return (
            f"the installed distribution is {runtime.distribution} {runtime.version}, which has no CUDA provider: run "
            f'pip uninstall -y {runtime.distribution}, then pip install "ortmulti[gpu]"',
        )
    libraries = search.find(runtime) if search else find_cuda_libraries(runtime)
    if not libraries.missing:
        return ()
    search = search or CudaSearch(_site_folders(runtime))
    name = " ".join(filter(None, (runtime.distribution or str(runtime.path), runtime.version)))
    reasons = [
        f"{name} is built for {_cuda(runtime)}, and of its libraries are missing: {', '.join(libraries.missing)}"
    ]
    if others := sorted({text for missing in libraries.missing for text in _other_versions(missing, search)}):
        reasons.append(f"found of other releases: {', '.join(others)}")
    reasons += [f"passed over: {text}" for text in libraries.unusable]
    reasons.append(f"looked for in {search.places()}")
    return (*reasons, _remedy(runtime))


def why_driver_too_old(runtime: OnnxRuntime, driver: int) -> str | None:
    """Say whether the CUDA driver is too old for an ONNX Runtime's CUDA provider.

    Args:
        runtime: what `find_onnxruntime` gave.
        driver: the newest CUDA release that the driver supports, 1000 * major + 10 * minor (12040 = 12.4).

    Returns:
        The reason and the remedy, or None if the driver is new enough.
    """
    major = cuda_major(runtime)
    if major is None or driver // 1000 >= major:
        return None
    return (
        f"ONNX Runtime {runtime.version} is built for CUDA {major} and the installed NVIDIA driver supports CUDA "
        f"{driver // 1000}.{driver % 1000 // 10}: update the driver, or install an onnxruntime-gpu built for CUDA "
        f"{driver // 1000}"
    )


def _cuda(runtime: OnnxRuntime) -> str:
    major = cuda_major(runtime)
    return "CUDA" if major is None else f"CUDA {major}"


def _other_versions(name: str, search: CudaSearch) -> Iterator[str]:
    prefix = name[: name.index(".so.") + 4]
    for path in search.other_versions(prefix):
        # Files may carry a longer number than the library's name: libcudart.so.12.9.79 is libcudart.so.12.
        if not f"{path.name}.".startswith(f"{name}."):
            yield f"{path.name} ({owner(path) or f'in {path.parent}'})"


def _remedy(runtime: OnnxRuntime) -> str:
    if runtime.distribution == "onnxruntime-gpu":
        extras = f"onnxruntime-gpu[cuda,cudnn]=={runtime.version}"
        return f'install the libraries of {_cuda(runtime)} with pip install "{extras}"'
    return f"install the libraries of {_cuda(runtime)} and cuDNN, or add their folder to LD_LIBRARY_PATH"


def owner(path: Path) -> str:
    """Return the distribution and release that brought a file of NVIDIA's wheels; empty where unknown."""
    parts = path.parts
    if "nvidia" not in parts:
        return ""
    at = len(parts) - 1 - parts[::-1].index("nvidia")
    relative = "/".join(parts[at:])
    for info in Path(*parts[:at]).glob("nvidia_*.dist-info"):
        try:
            record = (info / "RECORD").read_text(errors="replace")
        except OSError:
            continue
        if f"{relative}," in record:
            name, _, version = info.name.removesuffix(".dist-info").partition("-")
            return f"{name.replace('_', '-')} {version}"
    return ""


def _site_folders(runtime: OnnxRuntime) -> list[Path]:
    folders = [Path(entry) for entry in sys.path if entry]
    if runtime.capi is not None:
        folders.insert(0, runtime.capi.parent.parent)
    return list(dict.fromkeys(folders))


def open_by_name(name: str, search: bool) -> Path | None:
    """Ask the system's loader for a library.

    Args:
        name: its soname, for example ``libcublas.so.12``.
        search: whether to open the library, which the loader searches for; else it must be loaded already.

    Returns:
        The file, or None if there is none.

    Raises:
        OSError: the file exists but cannot be opened; the message has the loader's reason.
    """
    import ctypes

    class LinkMap(ctypes.Structure):  # glibc's struct link_map
        _fields_ = (("l_addr", ctypes.c_void_p), ("l_name", ctypes.c_char_p))

    try:
        library = ctypes.CDLL(name, os.RTLD_LAZY if search else os.RTLD_NOLOAD)  # never closed
    except OSError as error:
        if not search or str(error).startswith(f"{name}: cannot open shared object file: No such file"):
            return None
        raise
    entry = ctypes.POINTER(LinkMap)()
    if ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), 2, ctypes.byref(entry)):  # 2: RTLD_DI_LINKMAP
        return None
    return Path(os.fsdecode(entry.contents.l_name))


class CudaSearch:
    """The places where CUDA libraries may lie.

    Args:
        folders: folders in which Python packages are installed, best first.
        system: the system's loader, as `open_by_name`.
        first: a folder that comes before the packages'.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        system: Callable[[str, bool], Path | None] = open_by_name,
        first: Path | None = None,
    ) -> None:
        nvidia = [
            library for folder in folders for library in sorted((folder / "nvidia").glob("*/lib")) if library.is_dir()
        ]
        torch = [library for folder in folders if (library := folder / "torch" / "lib").is_dir()]
        self._places = {"first": [first] if first else [], "nvidia": nvidia, "torch": torch}
        self._system = system

    def places(self) -> str:
        """Where libraries are looked for, for messages."""
        nvidia = {f"{folder.parents[1]}/*/lib" for folder in self._places["nvidia"]} or {
            "NVIDIA's wheels (none is there)"
        }
        others = [str(folder) for source in ("first", "torch") for folder in self._places[source]]
        return f"{', '.join([*sorted(nvidia), *others])}, and by the system's loader (LD_LIBRARY_PATH, ldconfig)"

    def find(self, runtime: OnnxRuntime) -> CudaLibraries:
        """Find the libraries for one ONNX Runtime; see `find_cuda_libraries`."""
        if not runtime.has_cuda:
            return CudaLibraries((), ())
        major = cuda_major(runtime)
        required = list(runtime.cuda_needed)
        optional = [name for name in _opened_at_run_time(major) if name not in required]
        unusable: list[str] = []
        chosen: dict[str, tuple[Path, str, SharedLibrary]] = {}
        missing: list[str] = []
        missing_optional: list[str] = []
        for names, absent in ((required, missing), (optional, missing_optional)):
            for name in names:  # grows below: a library's own dependencies are looked for too
                hit = self._choose(name, major, unusable)
                if hit is None:
                    absent.append(name)
                    continue
                chosen[name] = hit
                names += [n for n in hit[2].needed if is_cuda_library(n) and n not in required and n not in optional]
        order = _dependencies_first({name: library.needed for name, (_, _, library) in chosen.items()})
        return CudaLibraries(
            found=tuple(chosen[name][0] for name in order),
            missing=tuple(missing),
            sources=tuple(chosen[name][1] for name in order),
            missing_optional=tuple(missing_optional),
            unusable=tuple(unusable),
        )

    def other_versions(self, prefix: str) -> Iterator[Path]:
        """Every library whose file name begins with a prefix such as ``libcublas.so.``."""
        for folders in self._places.values():
            for folder in folders:
                yield from folder.glob(f"{prefix}*")

    def _choose(self, name: str, major: int | None, unusable: list[str]) -> tuple[Path, str, SharedLibrary] | None:
        for find, source in self._candidates(name):
            try:
                path = find()
            except OSError as error:
                unusable.append(f"{name} of the system's loader: {error}")
                continue
            if path is None:
                continue
            try:
                library = read_shared_library(path)
            except ElfError as error:
                unusable.append(f"{path} {error}")
                continue
            if not library.is_native:
                unusable.append(f"{path} is for another processor")
            elif major is not None and (other := _other_cuda(path, library, major)):
                unusable.append(f"{path} belongs to CUDA {other}")
            else:
                return path, source, library
        return None

    def _candidates(self, name: str) -> Iterator[tuple[Callable[[], Path | None], str]]:
        yield partial(self._system, name, False), "loaded"
        for source, folders in self._places.items():
            for folder in folders:
                if (folder / name).is_file():
                    yield partial(Path, folder, name), source
        yield partial(self._system, name, True), "system"


def _other_cuda(path: Path, library: SharedLibrary, major: int) -> int | None:
    """Return the CUDA release of a library, if it is not the expected one.

    The names do not always tell: libcurand.so.10 and libcudnn.so.9 exist for CUDA 12 and for CUDA 13.
    """
    if match := re.fullmatch(r"cu(\d+)", path.parent.parent.name):
        majors = {int(match[1])}
    elif library.soname is not None and library.soname.startswith("libcudnn"):
        site = path.parent.parent.parent.parent
        names = [info.name for info in site.glob("nvidia_cudnn_cu*.dist-info")]
        majors = {int(match[1]) for name in names if (match := re.match(r"nvidia_cudnn_cu(\d+)-", name))}
    else:
        majors = {int(match[1]) for name in library.needed if (match := re.match(r"libcudart\.so\.(\d+)", name))}
    return None if not majors or major in majors else min(majors)


def _opened_at_run_time(major: int | None) -> tuple[str, ...]:
    """Libraries that the provider, or cuDNN under it, opens by name instead of being linked to them."""
    if major is None:
        return ()
    # cuFFT's number has been one behind CUDA's since CUDA 11; cuDNN 9 serves CUDA 12 and 13.
    return (f"libnvrtc.so.{major}", f"libcufft.so.{major - 1}", "libcudnn.so.9")


def run_time_use(name: str) -> str:
    """Return the use of an optional library, for messages; empty if unknown."""
    return _RUN_TIME_USES.get(name.partition(".so")[0], "")


def _dependencies_first(needed: dict[str, Iterable[str]]) -> list[str]:
    order: list[str] = []
    visiting: set[str] = set()

    def visit(name: str) -> None:
        if name in visiting or name in order:
            return
        visiting.add(name)
        for dependency in needed[name]:
            if dependency in needed:
                visit(dependency)
        order.append(name)

    for name in needed:
        visit(name)
    return order
