"""A candidate's process as the one that tunes sees it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti._runtime.child_process import exit_text
from ortmulti._runtime.closing import Closing
from ortmulti.tools.tune.space import RejectedError

_MOST_ANSWER = 1 << 20


class CandidateProcess(Closing):
    """Starts `ortmulti.tools.tune.worker`, and asks it. Closing it ends the process and all of its children.

    Args:
        spec: What the worker is told.
        environment: Variables to set, besides this process's own.
        timeout: Seconds after which it counts as hung, when it starts and for each block.
        log: Where it writes what it has to say.
    """

    def __init__(self, spec: Mapping[str, Any], environment: Mapping[str, str], timeout: float, log: Path) -> None:
        self._timeout = timeout
        self._log = log
        self._begin = time.monotonic()
        self._first: dict[str, Any] | None = None
        self._failure: RejectedError | None = None
        self._unread = b""
        self._answers, for_worker = os.pipe()
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "ortmulti.tools.tune.worker", str(for_worker)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **environment},
                    pass_fds=[for_worker],
                    # Ctrl-C is for the one that tunes.
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._answers)
            raise
        finally:
            os.close(for_worker)
        self._closed = False
        try:
            self._send(json.dumps(spec))
        except BaseException:
            self.close()
            raise

    def first(self) -> dict[str, Any]:
        """What it says first: that it can be measured, or the only thing that was to be.

        Raises:
            RejectedError: It failed, died or took too long.
        """
        if self._first is None:
            self._first = self._receive(self._begin + self._timeout)
        return self._first

    def block(self) -> float:
        """Measures once; the cost.

        Raises:
            RejectedError: It failed, died or took too long.
        """
        self.first()
        self._send("block")
        return float(self._receive(time.monotonic() + self._timeout)["cost"])

    def close(self) -> None:
        """Ends the process. Again: does nothing."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._answers)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # One that has died is found when its answer is missing.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _receive(self, until: float) -> dict[str, Any]:
        if self._failure is not None:
            raise self._failure
        try:
            return self._next_answer(until)
        except RejectedError as error:
            self._failure = error
            raise

    def _next_answer(self, until: float) -> dict[str, Any]:
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                self.close()
                raise RejectedError("hung", f"did not answer within {self._timeout:.3g} seconds")
            read = os.read(self._answers, _MOST_ANSWER)
            if not read:
                raise RejectedError("crashed", self._how_it_ended())
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RejectedError("failed", answer["error"])
        return answer

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            self.close()
            return "closed its pipe and went on"
        return f"the process {exit_text(code, self._log)}"
