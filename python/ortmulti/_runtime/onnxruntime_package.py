"""The onnxruntime package itself, for code that builds on its sessions."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

from ortmulti._runtime import native
from ortmulti._runtime.libraries import INSTALL
from ortmulti.errors import LibraryError

LOCK = native.RLock()
"""Held while names are rebound."""

# A child shall not inherit it held by a thread that it does not have.
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)

REPLACED: dict[str, Any] = {}
"""The package's own values of names that `patch_onnxruntime` has rebound; guarded by `LOCK`."""


class _Package:
    """onnxruntime with its own classes under their names, whatever `patch_onnxruntime` has put there."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        with LOCK:
            return REPLACED[name] if name in REPLACED else getattr(self._module, name)


def import_onnxruntime() -> Any:
    """Import onnxruntime, which opens its own copy of ONNX Runtime.

    Returns:
        What has the module's attributes, untyped: the package has no stubs. They are its own also while
        `patch_onnxruntime` is in effect.

    Raises:
        LibraryError: It cannot be imported.
    """
    return _package(import_module("onnxruntime"))


def import_module(name: str) -> Any:
    """Import onnxruntime or a module of it.

    Raises:
        LibraryError: It cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LibraryError(f"{name} cannot be imported ({error}): {INSTALL}") from error


@functools.cache
def _package(module: Any) -> _Package:
    return _Package(module)
