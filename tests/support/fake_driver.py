"""A CUDA driver for child processes of tests on machines without GPUs: its memory is the host's."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class FakeDriver:
    """`environment` makes a child process use it; `calls` are what it was asked."""

    environment: dict[str, str]
    log: Path

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def build(folder: Path) -> FakeDriver:
    """Compiles the driver beside this file into `folder`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library, log = Path(__file__).with_suffix(".c"), folder / "libcuda.so.1", folder / "calls"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror")
    subprocess.run([compiler, *flags, "-o", str(library), str(source), "-ldl"], check=True)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    environment = {"LD_LIBRARY_PATH": path, "FAKE_DRIVER_LOG": str(log), "CUDA_VISIBLE_DEVICES": "0,1,2"}
    return FakeDriver(environment, log)
