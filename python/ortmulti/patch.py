"""`ortmulti.patch_onnxruntime`: libraries that construct onnxruntime's sessions get ortmulti's."""

from __future__ import annotations

import sys
from typing import Any, Self

from ortmulti._runtime.onnxruntime_package import LOCK, REPLACED, import_module
from ortmulti.errors import ClosedError, Error

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
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "copy_tensors",
)
# Functions that set something of the library, which then is ortmulti's.
_FUNCTIONS = (
    "disable_telemetry_events",
    "enable_telemetry_events",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
)
# Rebound in every loaded module of onnxruntime that has them: code outside catches them by names of several modules.
_EXCEPTIONS = (
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
)
_PUBLIC = (*_CLASSES, *_FUNCTIONS)
_TABLE = {
    "onnxruntime": _PUBLIC,
    "onnxruntime.capi.onnxruntime_inference_collection": ("InferenceSession",),
}
_STATE = "onnxruntime.capi.onnxruntime_pybind11_state"

# What is rebound now: module, name, onnxruntime's, ours. Guarded by LOCK, as is the number of patches in effect.
_bound: list[tuple[Any, str, Any, Any]] = []
_patches = 0


class Patch:
    """One call of `patch_onnxruntime`, in effect until `undo`; as a context manager, until its block ends."""

    def __init__(self) -> None:
        self._active = True

    @property
    def active(self) -> bool:
        """Whether it was not undone yet."""
        return self._active

    def undo(self) -> None:
        """End this patch. The last one that ends gives the names back to onnxruntime.

        Sessions that were made meanwhile go on.

        Raises:
            ClosedError: It was undone before.
            Error: Somebody else has rebound a name meanwhile. That name is left as it is, and all others are
                onnxruntime's again.
        """
        with LOCK:
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
        with LOCK:
            if self._active:
                self.undo()

    def __repr__(self) -> str:
        return f"<Patch of onnxruntime, {'in effect' if self._active else 'undone'}>"


def patch_onnxruntime() -> Patch:
    """Put ortmulti's classes under onnxruntime's names, for libraries that construct sessions themselves.

    ``onnxruntime`` is imported if it was not. From then on `InferenceSession`, `SessionOptions`, `RunOptions`, the
    enumerations and the other classes that ortmulti has are found as ``onnxruntime.InferenceSession`` and so on,
    `InferenceSession` in ``onnxruntime.capi.onnxruntime_inference_collection`` too. The exceptions are rebound in every
    module of onnxruntime that has them, such as ``onnxruntime.capi.onnxruntime_pybind11_state`` and ``_pybind_state``,
    so that code that catches them goes on working. The functions that set the log's severity, the seed, telemetry and
    global thread pools are ortmulti's as well, for its sessions. It holds for the whole process, all threads included.
    Patches nest, and may be undone in any order: the names are onnxruntime's again after the last.

    What cannot be rebound:

    - names that somebody has already taken out of the module, by ``from onnxruntime import InferenceSession``, as a
      default argument or as a base class. Patch before such a module is imported; undo has no effect on those that were
      imported meanwhile.
    - sessions, options and values that exist already: they stay what they are, and are not taken for ortmulti's.
    - what ortmulti does not have: ``SparseTensor``, ``ModelCompiler``, ``create_and_register_allocator`` and the other
      names that docs/differences.md lists as missing stay onnxruntime's. They take onnxruntime's own options, devices
      and values, raise TypeError for ortmulti's, and have no effect on ortmulti's sessions.
    - the C namespaces ``onnxruntime.capi.onnxruntime_pybind11_state`` and ``_pybind_state``, but for the exceptions.
      Their classes, such as ``OrtValueVector`` and ``SessionOptions``, stay onnxruntime's.
    - extensions in C++ that use ONNX Runtime without this package, as onnxruntime-genai does.
    - the exceptions of onnxruntime's sessions that exist already: while the patch lasts, the exceptions' names do not
      catch them, and these sessions do not fall back to the CPU when a provider fails.

    Returns:
        A `Patch`, with `undo` and usable in a ``with`` statement.

    Raises:
        LibraryError: onnxruntime cannot be imported.
    """
    modules = {name: import_module(name) for name in (*_TABLE, _STATE)}
    with LOCK:
        _begin(modules)
        return Patch()


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
                if names is _PUBLIC:
                    REPLACED[name] = getattr(module, name)
                _bind(module, name, getattr(ortmulti, name))
        loaded = [module for name, module in list(sys.modules.items()) if name.startswith("onnxruntime.")]
        for name in _EXCEPTIONS:
            theirs = getattr(modules[_STATE], name, None)  # None: a later release's
            for module in loaded if theirs is not None else ():
                if getattr(module, "__dict__", {}).get(name) is theirs:
                    _bind(module, name, getattr(errors, name))
    _patches += 1


def _bind(module: Any, name: str, ours: Any) -> None:
    _bound.append((module, name, getattr(module, name), ours))
    setattr(module, name, ours)


def _end() -> list[str]:
    """Ends one patch; the names that were not what it had made them."""
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
    REPLACED.clear()
    return changed
