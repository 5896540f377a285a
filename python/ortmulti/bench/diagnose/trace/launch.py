"""Starts the process that is traced, watches it from outside, and ends it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti._runtime.child_process import ChildProcess

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
from ortmulti.bench.diagnose.trace import traced_process
steps.append((time.monotonic_ns(), time.thread_time_ns()))
with open(sys.argv[1]) as file:
    traced_process.main(json.load(file), steps)
"""


def launch(
    spec: dict[str, Any], folder: Path, timeout: float, environment: Mapping[str, str], sampled: bool, workers: bool
) -> tuple[Recording, str | None]:
    """Run `traced_process.main` in a fresh process with its own process group, which is ended with it.

    Args:
        spec: see there, without "events" and "profiles".
        folder: an empty one, for the process's files.
        timeout: seconds after which the process is killed.
        environment: variables to set, besides this process's own.
        sampled: whether its threads are sampled.
        workers: whether it starts other processes.

    Returns:
        Its records, and its error if it failed.
    """
    spec_file, log, told = folder / "spec.json", folder / "log", folder / "events"
    spec_file.write_text(json.dumps({**spec, "events": str(told), "profiles": f"{folder}/profile-"}))
    with log.open("ab") as output:
        process = ChildProcess(_PRELUDE, [str(spec_file)], output=output, environment=environment)
        sampler = Sampler(process.pid, workers) if sampled else None
        try:
            in_time = process.wait(timeout)
        finally:
            ended = time.monotonic_ns()
            process.kill_group()
            if sampler is not None:
                sampler.stop()
    recording = Recording(
        process.started,
        ended,
        process.pid,
        events.read(told),
        log,
        time.time_ns() - time.monotonic_ns(),
        {} if sampler is None else sampler.threads,
    )
    problem = recording.events.one("failed").get("text")
    if not in_time:
        problem = f"took longer than {timeout:g} seconds and was ended"
    elif problem is None and not recording.events.one("answered"):
        problem = f"the process {process.ending(log)}"
    return recording, problem
