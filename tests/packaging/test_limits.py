"""Limits for tests that hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT, child_environment

HANGING = """
import ctypes
import time
from tests import conftest

conftest.PATIENCE = 1.0

def test_sleeps():
    time.sleep(600)

def test_passes():
    pass

def test_holds_the_gil():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
"""


def test_a_test_that_hangs_is_ended_with_stacks(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [*pytest, "--timeout", "0.5", "-v", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        env=child_environment({"PYTEST_ADDOPTS": None}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "test_sleeps FAILED" in run.stdout
    assert "test_passes PASSED" in run.stdout
    assert "in test_holds_the_gil" in run.stderr
