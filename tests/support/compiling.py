"""Shared libraries in C that tests compile."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_library(source: str | Path, library: Path, *options: str) -> Path:
    """Compiles a source, of this folder where only its name is given. Without a compiler the test is skipped."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror", *options)
    path = Path(__file__).parent / source
    subprocess.run([compiler, *flags, "-o", str(library), str(path), "-ldl", "-lpthread"], check=True)
    return library
