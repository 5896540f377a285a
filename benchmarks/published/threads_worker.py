"""Runs of sessions on the CPU with some thread settings; runs in a process of its own."""

from __future__ import annotations

import os
import re
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ortmulti.bench.files import read_arrays
from ortmulti.bench.serve import clients
from ortmulti.bench.serve.clients import ClosedLoop

_TASKS = Path("/proc/self/task")


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Creates sessions, and runs them at once and again and again, by a thread each.

    Args:
        spec: "model" (path), "feeds" (path of an .npz file with the inputs), "seconds" (to measure), "sessions",
            "intra_op_num_threads", "parallel" (whether the execution mode is ORT_PARALLEL), "config_entries"; and
            "global_threads": None for onnxruntime's sessions with pools of their own, else for ortmulti's sessions:
            0 with pools of their own, or the threads of one pool for all.

    Returns:
        Seconds: "run" (the median), "cpu" (processor time of the process for a run). "throughput": runs a second.
        "threads": how many the creation has started, and "bound": how many of them may run on fewer processors than the
        process.
    """
    feeds = read_arrays(spec["feeds"])
    create = _onnxruntime(spec) if spec["global_threads"] is None else _ours(spec)
    before = _threads()
    sessions = [create() for _ in range(spec["sessions"])]
    started = {name: processors for name, processors in _threads().items() if name not in before}
    allowed = len(os.sched_getaffinity(0))
    with ClosedLoop([partial(session.run, None, feeds) for session in sessions]) as loop:
        loop.until_answered()
        loop.go_on(spec["seconds"] / 4)
        cpu = time.process_time()
        begin, end = loop.go_on(spec["seconds"])
        while not (result := clients.closed_loop([a for one in loop.answers for a in one], begin, end))["requests"]:
            _, end = loop.go_on(spec["seconds"])
        cpu = time.process_time() - cpu
    runs = [(done - asked) / 1e9 for one in loop.answers for asked, done in one if begin < done <= end]
    return {
        "run": statistics.median(runs),
        "cpu": cpu / len(runs),
        "throughput": result["throughput"],
        "threads": len(started),
        "bound": sum(processors < allowed for processors in started.values()),
    }


def _onnxruntime(spec: dict[str, Any]) -> Any:
    from ortmulti.bench.onnxruntime_sessions import create_session, open_package
    from ortmulti.bench.strategies import SessionSettings

    settings = SessionSettings(spec["intra_op_num_threads"], config_entries=spec["config_entries"])
    session = settings.spec(spec["model"], "cpu")
    session = replace(session, options={**session.options, "execution_mode": int(spec["parallel"])})
    onnxruntime = open_package([session.device])
    return lambda: create_session(onnxruntime, session)


def _ours(spec: dict[str, Any]) -> Any:
    """ortmulti's sessions: they can have a global pool with every release."""
    import ortmulti

    if spec["global_threads"]:
        ortmulti.configure(global_thread_pools=ortmulti.GlobalThreadPools(spec["global_threads"]))
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = spec["intra_op_num_threads"]
    if spec["parallel"]:
        options.execution_mode = ortmulti.ExecutionMode.ORT_PARALLEL
    for key, value in spec["config_entries"].items():
        options.add_session_config_entry(key, value)
    options.use_per_session_threads = not spec["global_threads"]
    return lambda: ortmulti.InferenceSession(spec["model"], options, providers=["CPUExecutionProvider"])


def _threads() -> dict[str, int]:
    """This process's threads, each with the number of processors on which it may run."""
    found = {}
    for task in _TASKS.iterdir():
        try:
            status = (task / "status").read_text()
        except OSError:  # it has just ended
            continue
        match = re.search(r"(?m)^Cpus_allowed_list:\t(.*)$", status)
        found[task.name] = sum(_length(part) for part in match[1].split(",")) if match else 0
    return found


def _length(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1
