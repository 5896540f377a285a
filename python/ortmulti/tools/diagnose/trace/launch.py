"""Starts the process that is traced, watches it from outside, and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti._runtime.exit_text import exit_text

from . import events
from .assemble import Recording
from .sampler import Sampler

# The time is read before anything is imported that an interpreter does not have from its start.
_PRELUDE = """
import time
steps = [(time.monotonic_ns(), time.thread_time_ns())]
import numpy
steps.append((time.monotonic_ns(), time.thread_time_ns()))
import ortmulti
steps.append((time.monotonic_ns(), time.thread_time_ns()))
import json, sys
from ortmulti.tools.diagnose.trace import worker
steps.append((time.monotonic_ns(), time.thread_time_ns()))
with open(sys.argv[1]) as file:
    worker.main(json.load(file), steps)
"""

_TAIL_BYTES = 2000


@dataclass(frozen=True)
class Ended:
    """A process that has ended: what was recorded, and what went wrong (None: nothing)."""

    recording: Recording
    problem: str | None


def launch(
    spec: dict[str, Any], folder: Path, timeout: float, environment: Mapping[str, str], sampled: bool, workers: bool
) -> Ended:
    """Runs `worker.main` in a fresh process, which leads a group of its own that is ended with it.

    Args:
        spec: see there, without "events" and "profiles".
        folder: an empty one, for the process's files.
        timeout: seconds after which the process is killed.
        environment: variables to set, besides this process's own.
        sampled: whether its threads are sampled.
        workers: whether it starts other processes.
    """
    spec_file, log, told = folder / "spec.json", folder / "log", folder / "events"
    spec_file.write_text(json.dumps({**spec, "events": str(told), "profiles": f"{folder}/profile-"}))
    timed_out = False
    with log.open("ab") as output:
        started = time.monotonic_ns()
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PRELUDE, str(spec_file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        sampler = Sampler(process.pid, workers) if sampled else None
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            ended = time.monotonic_ns()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if sampler is not None:
                sampler.stop()
    recording = Recording(
        started,
        ended,
        process.pid,
        events.read(told),
        log,
        time.time_ns() - time.monotonic_ns(),
        {} if sampler is None else sampler.threads,
    )
    problem = recording.events.one("failed").get("text")
    if timed_out:
        problem = f"took longer than {timeout:g} seconds and was ended"
    elif problem is None and not recording.events.one("answered"):
        problem = f"the process {exit_text(process.returncode)} without a result{_last_line(log)}"
    return Ended(recording, problem)


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").strip().splitlines()
    # ONNX Runtime's log is there by our own wish, and says nothing of the end.
    said = [line for line in lines if "[I:onnxruntime:" not in line]
    return f"; its last line: {said[-1]}" if said else ""
