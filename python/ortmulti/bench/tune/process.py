"""The tuner's side of a candidate's process."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti._runtime.child_process import ChildProcess
from ortmulti._runtime.closing import Closing
from ortmulti.bench.tune.space import RejectedError

_CODE = "import sys; from ortmulti.bench.tune.candidate import main; sys.exit(main())"
_MOST_ANSWER = 1 << 20


class CandidateProcess(Closing):
    """Starts `ortmulti.bench.tune.candidate` and sends requests to it. Closing ends the process and all of its
    children.

    Args:
        spec: The spec for the process.
        environment: Variables to set, besides this process's own.
        timeout: Seconds for the start, and for each block. After that the process counts as hung.
        log: The file for its output.

    Attributes:
        first: Its first message: that it is ready, or the only measurement.

    Raises:
        RejectedError: It failed, died or took too long.
    """

    def __init__(self, spec: Mapping[str, Any], environment: Mapping[str, str], timeout: float, log: Path) -> None:
        self._timeout = timeout
        self._log = log
        self._unread = b""
        self._channel, for_worker = socket.socketpair()
        try:
            with for_worker, log.open("wb") as output:
                number = for_worker.fileno()
                self._process = ChildProcess(
                    _CODE, [str(number)], output=output, environment=environment, descriptors=[number]
                )
        except BaseException:
            self._channel.close()
            raise
        try:
            self.first = self._answer_to(json.dumps(spec))
        except BaseException:
            self.close()
            raise

    def block(self) -> float:
        """Measure once and return the cost.

        Raises:
            RejectedError: It failed, died or took too long.
        """
        return float(self._answer_to("block")["cost"])

    def close(self) -> None:
        """End the process. A second call does nothing."""
        if self._channel.fileno() >= 0:
            self._channel.close()
            self._process.kill_group()

    def _answer_to(self, request: str) -> dict[str, Any]:
        until = time.monotonic() + self._timeout
        with contextlib.suppress(OSError):  # one that has died is found when its answer is missing
            self._channel.sendall(request.encode() + b"\n")
        while b"\n" not in self._unread:
            try:
                self._channel.settimeout(max(until - time.monotonic(), 0.001))
                read = self._channel.recv(_MOST_ANSWER)
            except TimeoutError:
                self.close()
                raise RejectedError("hung", f"did not answer within {self._timeout:.3g} seconds") from None
            except ConnectionResetError:  # it has not read all
                read = b""
            if not read:
                raise RejectedError("crashed", self._how_it_ended())
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RejectedError("failed", answer["error"])
        return answer

    def _how_it_ended(self) -> str:
        if not self._process.wait(self._timeout):
            self.close()
            return "closed its socket and went on"
        return f"the process {self._process.ending(self._log)}"
