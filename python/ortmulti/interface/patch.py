"""`ortmulti.patch_onnxruntime`: libraries that construct onnxruntime's sessions get ortmulti's."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Self

from ortmulti._runtime import native
from ortmulti._runtime.libraries import INSTALL
from ortmulti.errors import ClosedError, Error, LibraryError

__all__ = ["Patch", "patch_onnxruntime"]

# What is rebound, of what ortmulti and this release of onnxruntime both have. Under the package's name: all. In the
# module that defines the sessions: only what its own classes do not look up there, since sessions that exist go on.
_CLASSES = (
    "AdapterFormat",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "LoraAdapter",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtEpDevice",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "copy_tensors",
)
# Functions that configure the library; under the patch they configure ortmulti's.
_FUNCTIONS = (
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_ep_devices",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
)
_PUBLIC = (*_CLASSES, *_FUNCTIONS)
_TABLE = {
    "onnxruntime": _PUBLIC,
    "onnxruntime.capi.onnxruntime_inference_collection": ("InferenceSession",),
}
_STATE = "onnxruntime.capi.onnxruntime_pybind11_state"

_LOCK = native.RLock()  # held while names are rebound
# A child shall not inherit it held by a thread that it does not have.
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)

# What is rebound now: module, name, onnxruntime's, ours. Guarded by the lock, as is the number of patches in effect.
_bound: list[tuple[Any, str, Any, Any]] = []
_patches = 0


class Patch:
    """One call of `patch_onnxruntime`, in effect until `undo` or until the end of its ``with`` block."""

    def __init__(self) -> None:
        self._active = True

    @property
    def active(self) -> bool:
        """Whether the patch is still in effect."""
        return self._active

    def undo(self) -> None:
        """End this patch. The end of the last patch restores onnxruntime's names.

        Sessions that were made under the patch keep working.

        Raises:
            ClosedError: The patch was undone before.
            Error: Other code has rebound a name under the patch. That name stays; all others are onnxruntime's again.
        """
        with _LOCK:
            if not self._active:
                raise ClosedError("this patch of onnxruntime was undone before")
            self._active = False
            changed = _end()
        if changed:
            raise Error(
                f"{', '.join(changed)} was rebound by somebody else after patch_onnxruntime, and is left as it is: "
                "undo in the reverse order"
            )

    def __enter__(self) -> Self:
        if not self._active:
            raise ClosedError("this patch of onnxruntime was undone before: call patch_onnxruntime again")
        return self

    def __exit__(self, *exception: object) -> None:
        with _LOCK:
            if self._active:
                self.undo()

    def __repr__(self) -> str:
        return f"<Patch of onnxruntime, {'in effect' if self._active else 'undone'}>"


def patch_onnxruntime() -> Patch:
    """Put ortmulti's classes under onnxruntime's names, for libraries that construct sessions themselves.

    The function imports ``onnxruntime`` if necessary. Then `InferenceSession`, `SessionOptions`, `RunOptions`, the
    enumerations and ortmulti's other classes are found as ``onnxruntime.InferenceSession`` and so on.
    `InferenceSession` is also rebound in ``onnxruntime.capi.onnxruntime_inference_collection``. The exceptions are
    rebound in every module of onnxruntime that has them, such as ``onnxruntime.capi.onnxruntime_pybind11_state`` and
    ``_pybind_state``. So code that catches them keeps working. The functions that set the log's severity, the seed,
    telemetry and global thread pools are ortmulti's as well, for its sessions. So are the functions that register
    plug-ins and list their devices. The patch holds for all threads of the process. Patches nest and may be undone in
    any order: after the last one the names are onnxruntime's again.

    These stay onnxruntime's:

    - names that a module has already taken, by ``from onnxruntime import InferenceSession``, as a default argument or
      as a base class. Patch before importing such a module. Modules imported under the patch keep ortmulti's names.
    - sessions, options and values that exist already. They are no instances of ortmulti's classes.
    - names that ortmulti does not have: ``SparseTensor``, ``ModelCompiler``, ``create_and_register_allocator`` and the
      others that docs/differences.md lists. They take onnxruntime's own options, devices and values, raise TypeError
      for ortmulti's, and have no effect on ortmulti's sessions.
    - the C namespaces ``onnxruntime.capi.onnxruntime_pybind11_state`` and ``_pybind_state``, except the exceptions.
      Their classes, such as ``OrtValueVector`` and ``SessionOptions``, are not rebound.
    - C++ extensions that use ONNX Runtime without this package, such as onnxruntime-genai.
    - exceptions of onnxruntime's existing sessions. Under the patch, ``except`` with the exceptions' names does not
      catch them. These sessions also do not fall back to the CPU when a provider fails.

    Returns:
        A `Patch`, with `undo`, and for a ``with`` statement.

    Raises:
        LibraryError: onnxruntime cannot be imported.
    """
    modules = {name: import_module(name) for name in (*_TABLE, _STATE)}
    with _LOCK:
        _begin(modules)
        return Patch()


def import_module(name: str) -> Any:
    """Import onnxruntime or a module of it.

    Raises:
        LibraryError: It cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LibraryError(f"{name} cannot be imported ({error}): {INSTALL}") from error


def _begin(modules: dict[str, Any]) -> None:
    global _patches
    if _patches == 0:
        import ortmulti
        from ortmulti import errors

        for module_name, names in _TABLE.items():
            module = modules[module_name]
            for name in names:
                if not hasattr(ortmulti, name) or not hasattr(module, name):
                    continue
                _bind(module, name, getattr(ortmulti, name))
        loaded = [module for name, module in list(sys.modules.items()) if name.startswith("onnxruntime.")]
        # In every module that has them: code outside catches them by names of several modules.
        for name in errors.__all__:
            theirs = getattr(modules[_STATE], name, None)  # None: only ours, or a later release's
            for module in loaded if theirs is not None else ():
                if getattr(module, "__dict__", {}).get(name) is theirs:
                    _bind(module, name, getattr(errors, name))
    _patches += 1


def _bind(module: Any, name: str, ours: Any) -> None:
    _bound.append((module, name, getattr(module, name), ours))
    setattr(module, name, ours)


def _end() -> list[str]:
    """End one patch. Return the names that other code has rebound."""
    global _patches
    _patches -= 1
    if _patches:
        return []
    changed = []
    for module, name, theirs, ours in _bound:
        if getattr(module, name, None) is ours:
            setattr(module, name, theirs)
        else:
            changed.append(f"{module.__name__}.{name}")
    _bound.clear()
    return changed
