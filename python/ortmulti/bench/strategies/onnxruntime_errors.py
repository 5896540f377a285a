"""Translation of onnxruntime's exceptions to those of the core."""

from __future__ import annotations

import re

from ortmulti import errors
from ortmulti.errors import Error

__all__ = ["error_of", "kind_of", "translate"]

_PREFIX = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
# ONNX Runtime has no code for exhausted memory: its allocators say so in words.
_MEMORY = (
    "Failed to allocate memory",
    "out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "std::bad_alloc",
    "bad allocation",
    "Available memory of",
)


def kind_of(error: BaseException) -> str:
    """Return the name of the class in `ortmulti.errors` for an exception of onnxruntime's, or of ours."""
    if isinstance(error, Error):
        return type(error).__name__
    text = str(error)
    if isinstance(error, MemoryError) or any(phrase in text for phrase in _MEMORY):
        return "OutOfMemory"
    name = type(error).__name__
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, Error):
        return name
    return {"ValueError": "InvalidArgument", "TypeError": "InvalidType"}.get(name, "RuntimeException")


def translate(error: BaseException, context: str) -> tuple[str, str]:
    """Return the class's name and the text of an exception. The context is put before the text, except for our own."""
    text = str(error)
    if not isinstance(error, Error):
        text = f"{context}: {_PREFIX.sub('', text, count=1)}"
    return kind_of(error), text


def error_of(kind: str, text: str) -> Error:
    """Return the exception of a class in `ortmulti.errors`."""
    found = getattr(errors, kind, errors.RuntimeException)
    error: Error = found._of_runtime(text)
    return error
