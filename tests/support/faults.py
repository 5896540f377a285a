"""Calls of the system that fail, in child processes of tests: `build` compiles faults.c, a child uses `failing`."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.compiling import compile_library

SHORT = -1
"""Instead of an error: the call transfers fewer bytes than asked for."""


def build(folder: Path) -> dict[str, str]:
    """Compiles the library into `folder`; the environment of a child that has it."""
    library = compile_library("faults.c", folder / "libfaults.so")
    preload = " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    return {"LD_PRELOAD": preload, "FAULTS_LIBRARY": str(library)}


def from_start(operation: str, error: int, first: int, count: int = 1, path: str = "") -> dict[str, str]:
    """Further environment of a process in which these calls fail."""
    return {"FAULTS": f"{operation}:{error}:{first}:{count}:{path}"}


@dataclass
class Counts:
    """How often the operation was called and how often it failed, once the block has ended."""

    calls: int = 0
    failures: int = 0


@contextlib.contextmanager
def failing(operation: str, error: int, first: int, count: int = 1, path: str = "") -> Iterator[Counts]:
    """Has the calls number `first` to `first + count - 1` fail in this process, from 1.

    Args:
        operation: As faults.c names it.
        error: Of `errno`, or `SHORT`.
        path: Part of the path of the files that count.
    """
    library = ctypes.CDLL(os.environ["FAULTS_LIBRARY"])
    library.faults_calls.restype = library.faults_failures.restype = ctypes.c_long
    library.faults_arm.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_char_p)
    counts = Counts()
    library.faults_arm(operation.encode(), error, first, count, path.encode())
    try:
        yield counts
    finally:
        counts.calls, counts.failures = library.faults_calls(), library.faults_failures()
        library.faults_arm(b"", 0, 0, 0, b"")
