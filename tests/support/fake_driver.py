"""A CUDA driver for child processes of tests on machines without GPUs: its memory is the host's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.compiling import compile_library


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
    compile_library("fake_driver.c", folder / "libcuda.so.1")
    log = folder / "calls"
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    environment = {"LD_LIBRARY_PATH": path, "FAKE_DRIVER_LOG": str(log), "CUDA_VISIBLE_DEVICES": "0,1,2"}
    return FakeDriver(environment, log)
