"""A fresh Python process, and an explanation of how it ended."""

from __future__ import annotations

import contextlib
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ortmulti.errors import Fail

__all__ = ["ChildProcess", "tail"]

_TAIL_BYTES = 2000
# Measurements make ONNX Runtime log this; it says nothing of the end.
_INFORMATION = "[I:onnxruntime:"


class ChildProcess:
    """Python that runs some code, spawned and not forked, in a session of its own: the terminal's Ctrl-C ends this
    process and not that one.

    Args:
        code: The code to run.
        arguments: ``sys.argv`` without its first entry.
        flags: Of the interpreter.
        output: Where it writes its standard output and error.
        environment: Variables, besides this process's own.
        descriptors: Open files that it inherits under the same numbers.

    Raises:
        Fail: This program is frozen: its executable would start the program again, and so on.
    """

    def __init__(
        self,
        code: str,
        arguments: Sequence[str] = (),
        *,
        flags: Sequence[str] = ("-P",),
        output: IO[bytes],
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        if getattr(sys, "frozen", False):
            raise Fail(
                f"cannot start a process of Python: this program is frozen, and {sys.executable} would start the "
                "program again: call tune and diagnose in an ordinary Python"
            )
        executable = os.fsdecode(multiprocessing.spawn.get_executable())
        self.started = time.monotonic_ns()
        self._process = subprocess.Popen(
            [executable, *flags, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            pass_fds=descriptors,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the process has ended, so many seconds at most, and return whether it has."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_group(self) -> None:
        """Kill the process with its children, at the latest just after its end, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def ending(self, output: Path | None = None) -> str:
        """Return how it ended, after "the process": "ended with exit code 1", with the last line of its output."""
        code = self._process.returncode
        if code >= 0:
            text = f"ended with exit code {code}"
        else:
            text = f"was ended by signal {-code}"
            with contextlib.suppress(ValueError):
                text += f" ({signal.Signals(-code).name})"
        return text if output is None else text + _last_line(output)


def tail(output: Path) -> str:
    """Return the end of a process's output."""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def _last_line(output: Path) -> str:
    lines = [line for line in tail(output).strip().splitlines() if _INFORMATION not in line]
    return f" without a result; its last line: {lines[-1]}" if lines else " without a result"
