"""The onnxruntime package itself, for what is built on its sessions."""

from __future__ import annotations

import importlib
from typing import Any

from ortmulti._libraries import INSTALL
from ortmulti.errors import LibraryError


def import_onnxruntime() -> Any:
    """Imports onnxruntime, which opens its own copy of ONNX Runtime.

    Returns:
        The module, untyped: the package has no stubs.

    Raises:
        LibraryError: It cannot be imported.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise LibraryError(f"onnxruntime cannot be imported ({error}): {INSTALL}") from error
