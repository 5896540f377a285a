"""Plug-ins: libraries of execution providers that are not part of ONNX Runtime, under onnxruntime's names."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ortmulti import _core, checks
from ortmulti._core import OrtEpDevice
from ortmulti._runtime import native, startup
from ortmulti._runtime.child_process import ChildProcess, tail
from ortmulti._runtime.elf import ElfError, read_shared_library
from ortmulti._runtime.libraries import PLUGIN_PREFIX, plugin_packages, release_of
from ortmulti.errors import DeviceError, InvalidArgument, LibraryError, NoSuchFile

__all__ = [
    "get_ep_devices",
    "register_execution_provider_library",
    "unregister_execution_provider_library",
]

# A plug-in may crash where ONNX Runtime is older than the one it was built for.
_TRIAL = """
import os, sys
sys.path[:] = {path!r}
from ortmulti import _core
_core.open_library(sys.argv[1])
try:
    _core.register_plugin("trial", sys.argv[2])
except Exception:
    pass  # the registration raises it again
os._exit(0)
"""
_TRIAL_SECONDS = 60.0

LOGGER = logging.getLogger("ortmulti")

# The release of ONNX Runtime that the notes of a release of CUDA's plug-in name as the matched one.
_MATCHED: dict[tuple[int, ...], tuple[int, ...]] = {(0, 4): (1, 32)}

_tried: set[tuple[str, ...]] = set()
_registrations: dict[str, str] = {}  # name -> path, since a plug-in that supports no hardware here has no device
_package_lock = native.RLock()  # threads that load models at once register a package once


def _after_fork_in_child() -> None:
    global _package_lock
    _package_lock = native.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)


def register_execution_provider_library(registration_name: str, library_path: str | os.PathLike[str]) -> None:
    """Load a plug-in, whose devices `get_ep_devices` lists from then on.

    A new process loads the plug-in first: one that crashes there, because it was built for a newer ONNX Runtime, is an
    error here.

    Args:
        registration_name: A free name, for `unregister_execution_provider_library`.
        library_path: The plug-in, such as a package's ``get_library_path()`` returns. A file name alone may also lie
            beside ONNX Runtime's library.

    Raises:
        NoSuchFile: There is no such file.
        LibraryError: It is no library of this processor, or it crashes when it is loaded.
        Fail: It cannot be loaded, is no plug-in, or the name is taken.
        NotImplemented: ONNX Runtime is older than 1.22.
        InvalidArgument, InvalidType: The name is empty, or an argument is not text.
        ForkError: A parent process registered plug-ins before this process was forked.
    """
    name = checks.text("registration_name", registration_name)
    if not name or "\0" in name:
        raise InvalidArgument(f"registration_name is a name that is not empty and has no zero byte, not {name!r}")
    path = checks.text("library_path", library_path)
    startup.ensure_open()
    found = _find(path)
    try:
        library = read_shared_library(Path(found))
    except ElfError as error:
        raise LibraryError(f"cannot register {found!r}: the file {error}; give the path of a plug-in") from error
    if not library.is_native:
        raise LibraryError(f"cannot register {found!r}: it is for another processor; install the plug-in for this one")
    _try_out(found)
    _core.register_plugin(name, found)
    _registrations[name] = found
    if any(device._library == found and device._name.startswith("cuda:") for device in get_ep_devices()):
        warn_of_unmatched_cuda(found)


def unregister_execution_provider_library(registration_name: str) -> None:
    """Unload a plug-in. Objects of its devices cannot be used any more.

    Args:
        registration_name: The name of its registration.

    Raises:
        Fail: No plug-in has this name, or sessions use its devices: close them before.
        InvalidType: The name is not text.
        NotImplemented: ONNX Runtime is older than 1.22.
        ForkError: As `register_execution_provider_library`.
    """
    name = checks.text("registration_name", registration_name)
    startup.ensure_open()
    _core.unregister_plugin(name)
    _registrations.pop(name, None)


def get_ep_devices() -> list[OrtEpDevice]:
    """List the devices of all execution providers, of plug-ins and of ONNX Runtime itself.

    Each has ``ep_name``, ``ep_vendor``, ``ep_metadata`` and ``ep_options`` of its provider, and ``device``: the
    hardware with its ``type`` (`OrtHardwareDeviceType`), ``vendor``, ``vendor_id``, ``device_id`` and ``metadata``.
    `SessionOptions.add_provider_for_devices` takes them.

    Raises:
        NotImplemented: ONNX Runtime is older than 1.22.
        LibraryError: No ONNX Runtime is installed.
        ForkError: As `register_execution_provider_library`.
    """
    startup.ensure_open()
    return _core.ep_devices()


def find(device: str) -> OrtEpDevice:
    """Return a plug-in's device by its name, such as ``"openvino:CPU"``.

    If no registered plug-in has it, an installed package ``onnxruntime-ep-*`` of this provider is registered.

    Raises:
        DeviceError: There is none; the message lists the devices of plug-ins.
        Error: As `register_execution_provider_library`.
    """
    if (found := _registered().get(device)) is not None:
        return found
    provider = device.partition(":")[0].partition(".")[0]
    packages = [package for package in plugin_packages() if _provider_part(package).startswith(provider)]
    for package in packages:
        register_package(package)
    devices = _registered()
    if (found := devices.get(device)) is not None:
        return found
    have = f"the plug-ins have {', '.join(sorted(devices))}" if devices else "no plug-in has a device here"
    libraries = {one._library for one in devices.values()}
    if idle := [name for name, path in _registrations.copy().items() if path not in libraries]:
        have += f"; no hardware here is supported by the registered {', '.join(map(repr, idle))}"
    if packages or any(name.startswith(provider) for name in devices):
        raise DeviceError(f"there is no {device}: {have}; name another device, such as 'cpu'")
    raise DeviceError(
        f"there is no {device}{did_you_mean(device, devices)}: {have}; install a package with the provider, such as "
        "onnxruntime-ep-openvino, or call register_execution_provider_library before"
    )


def did_you_mean(device: str, registered: Iterable[str] = ()) -> str:
    """Return a hint for an error about an unknown device: a plug-in's with nearly this name, or nothing.

    Its provider is OpenVINO, an installed package's, or one of the ``registered`` devices'.
    """
    provider, _, hardware = device.lower().replace("executionprovider", "").partition(":")
    kind = hardware[:3].upper() if hardware[:3] in ("cpu", "gpu", "npu") else "CPU"
    packages = (_provider_part(package).rstrip("0123456789") for package in plugin_packages())
    providers = {"openvino", *packages, *(name.partition(":")[0] for name in registered)}
    known = [f"{name}:{kind}" for name in sorted(providers)]
    return "" if device.startswith(tuple(known)) else checks.did_you_mean(f"{provider}:{kind}", known, cutoff=0.85)


def register_package(package: str) -> str:
    """Register the plug-in of an installed package, unless it or another one of its provider is registered.

    Returns:
        The provider's name.

    Raises:
        LibraryError: The package does not have the functions of such packages, or they fail.
        Error: As `register_execution_provider_library`.
    """
    try:
        module = importlib.import_module(package)
        path, name = module.get_library_path(), str(module.get_ep_name())
    except Exception as error:  # code of others
        raise LibraryError(
            f"the package {package} cannot be used as a plug-in: {error!r}; install it again, or call "
            "register_execution_provider_library with the path of its library"
        ) from error
    with _package_lock:
        registered = {*_registrations, *_registrations.values()}
        registered.update(device.ep_name for device in get_ep_devices() if device._library)
        if registered.isdisjoint((name, path)):
            register_execution_provider_library(name, path)
    return name


@functools.cache
def warn_of_unmatched_cuda(library: str) -> None:
    """Warn, once, of a CUDA plug-in that may not have been built from the sources of the open ONNX Runtime.

    Operators that ONNX Runtime adds to ONNX's change without a new version, and nothing else compares them.
    """
    runtime = Path(_core.onnxruntime_path())
    folder = Path(library).parent
    if folder == runtime.parent:
        return
    infos = folder.parent.glob(f"{PLUGIN_PREFIX}cuda*.dist-info")
    version = next((info.name.removesuffix(".dist-info").partition("-")[2] for info in infos), "")
    if _MATCHED.get(release_of(version)[:2]) == release_of(_core.onnxruntime_version())[:2]:
        return
    core = re.search(r"git-commit-id=([0-9a-f]+)", _core.build_info())
    try:
        build = re.search(r'BUILD_COMMIT = "([0-9a-f]+)"', (folder / "_build_info.py").read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        build = None
    if core and build and (core[1].startswith(build[1]) or build[1].startswith(core[1])):
        return
    built = f", of revision {build[1][:10]}" if build else ""
    LOGGER.warning(
        "the CUDA plug-in (%s) and ONNX Runtime %s%s may not be of one revision: operators of com.microsoft, such as "
        "GroupQueryAttention, may give wrong answers or crash (onnxruntime #32855); install the release of the plug-in "
        "whose notes name this ONNX Runtime as the matched one",
        f"{version or library}{built}",
        _core.onnxruntime_version(),
        f", of revision {core[1]}," if core else "",
    )


def _registered() -> dict[str, OrtEpDevice]:
    """Return the devices of registered plug-ins by their names; the first of several with the same."""
    return {device._name: device for device in reversed(get_ep_devices()) if device._name}


def _provider_part(package: str) -> str:
    return package.removeprefix(PLUGIN_PREFIX).replace("_", "")


def _find(path: str) -> str:
    if Path(path).is_file():
        return str(Path(path).absolute())
    beside = Path(_core.onnxruntime_path()).with_name(path) if path and "/" not in path else None
    if beside is not None and beside.is_file():
        return str(beside)
    also = "" if beside is None else f", nor {beside}"
    why = f"there is no such file{also}; check the path"
    if Path(path).is_dir():
        why = "this is a directory; give the path of the library in it"
    raise NoSuchFile(f"cannot register the plug-in {path!r}: {why}")


def _try_out(path: str) -> None:
    """Load the plug-in in a new process, once for each state of its file."""
    state = Path(path).stat()
    key = (path, str(state.st_ino), str(state.st_mtime_ns), _core.onnxruntime_path())
    if key in _tried or getattr(sys, "frozen", False):  # a frozen program has no Python for a process
        return
    with tempfile.NamedTemporaryFile() as output:
        child = ChildProcess(
            _TRIAL.format(path=sys.path),
            [_core.onnxruntime_path(), path],
            flags=subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            output=output.file,
        )
        try:
            ended = child.wait(_TRIAL_SECONDS)
        finally:
            child.kill_group()
        how = child.ending() if ended else f"did not end within {_TRIAL_SECONDS:.0f} s"
        if how != "ended with exit code 0":
            said = [line.strip() for line in tail(Path(output.name)).splitlines() if "API version" in line]
            reason = f": {said[0]}" if said else ""
            raise LibraryError(
                f"cannot register the plug-in {path!r} with ONNX Runtime {_core.onnxruntime_version()}: a process that "
                f"loaded it {how}{reason}. It was probably built for a newer ONNX Runtime: upgrade onnxruntime, or "
                "install an older release of the plug-in"
            )
    _tried.add(key)
