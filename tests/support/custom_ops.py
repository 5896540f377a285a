"""The library of custom operators of the core's tests, and a model that uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import onnx_models
from tests.support.processes import ROOT

DOMAIN = "ortmulti.tests"


def _headers() -> str:
    """The folder of ONNX Runtime's headers, as the build finds them."""
    places = [
        os.environ.get("ONNXRUNTIME_INCLUDE_DIR", ""),
        "/usr/include/onnxruntime",
        "/usr/local/include/onnxruntime",
    ]
    packages = Path.home() / ".cache/ortmulti/debian"
    places += map(str, sorted(packages.glob("*/libonnxruntime-dev/usr/include/onnxruntime")))
    for place in places:
        if place and Path(place, "onnxruntime_cxx_api.h").is_file():
            return place
    pytest.skip("needs ONNX Runtime's headers: set ONNXRUNTIME_INCLUDE_DIR")


def build_library(folder: Path, **definitions: int) -> Path:
    """Compiles the library into ``folder``, with the source's macros defined so."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    library = folder / "libcustom_ops.so"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-DORT_API_MANUAL_INIT"]
    flags += [f"-D{name}={value}" for name, value in definitions.items()]
    source = ROOT / "tests" / "cpp" / "custom_ops.cpp"
    subprocess.run([compiler, *flags, f"-isystem{_headers()}", str(source), "-o", str(library)], check=True)
    return library


def scaled(factor: float = 3.0) -> bytes:
    """ "y" = factor * "x", float32 [n], by the library's operator."""
    return onnx_models.parsed(
        f"(float[n] x) => (float[n] y) {{ y = {DOMAIN}.Scale <factor = {factor}> (x) }}"
    ).SerializeToString()
