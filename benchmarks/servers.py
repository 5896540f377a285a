"""Starts the servers and other long-lived programs of the benchmarks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Server:
    """A Python program in a process of its own.

    Args:
        command: behind "python".
        ready: pattern of its output; the constructor waits for it. "": it does not wait.
        log: file for the output.
        environment: variables to set, besides this process's own.

    Attributes:
        ready: the match of the pattern.
        pid: of the process.
    """

    ready: re.Match[str]

    def __init__(
        self, command: Sequence[str], ready: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(environment or {})}
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables
            )
        self.pid = self._process.pid
        if ready:
            self.ready = self.wait_for(ready)

    def text(self) -> str:
        """Return what it has printed so far."""
        return self._log.read_text("utf-8")

    def wait_for(self, pattern: str, seconds: float = 120.0) -> re.Match[str]:
        """Wait until its output matches, and return the match."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self._process.poll() is not None
            if found := re.search(pattern, self.text(), re.MULTILINE):
                return found
            if ended:
                break
            time.sleep(0.01)
        raise RuntimeError(f"no {pattern!r} in the output of {self._process.args!r}:\n{self.text()}")

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for its end, and return its status."""
        return self._process.wait(seconds)

    def close(self) -> int:
        """End it, if it has not ended, and return its status."""
        self.terminate()
        return self.wait()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
