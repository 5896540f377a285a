"""Traces the time of one fresh process, from its start to the first answer of every session.

from ortmulti.bench.diagnose.trace import trace

run = trace("model.onnx", "threads", ["cuda:0", "cuda:1"])
print(run["wall"], run["causes"], run["explained"])
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ortmulti.bench.strategies import SessionSettings, check_name
from ortmulti.bench.strategies.base import Array
from ortmulti.errors import Error, InvalidArgument, NoSuchFile

__all__ = ["trace"]

# What the process runs. The time is read before anything is imported that an interpreter does not have from its start.
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


def trace(
    model: str | Path,
    way: str,
    devices: Sequence[str],
    *,
    settings: SessionSettings | None = None,
    cache: str = "warm",
    feeds: Mapping[str, Array] | str | Path | None = None,
    timeout: float = 600.0,
    environment: Mapping[str, str] | None = None,
    instrumented: bool = True,
    experiment: str = "trace",
) -> dict[str, Any]:
    """Measure one process that creates a session of `model` on each of `devices` and run each once.

    Args:
        model: the .onnx file.
        way: a strategy: "sequential", "threads", "processes", "native" or "shared".
        devices: "cpu" or "cuda:<index>", one for each session; a device may be named several times.
        settings: the options that every session gets; default `SessionSettings()`.
        cache: "warm": the model's files are read into the page cache before. "cold": they are removed from it.
        feeds: the inputs, or the path of an .npz file, which is opened once and not unpickled; default:
            `ortmulti.bench.models.sample_inputs`.
        timeout: seconds after which the process is ended.
        environment: variables to set for the process, besides this process's own.
        instrumented: False: sessions are not recorded, to show the cost of recording. Then there are only spans outside
            of sessions, and no "first_answers".
        experiment: the run's "experiment".

    Returns:
        A run: "id", "experiment", "way", "devices", "cache", "settings", "instrumented", "wall", "ready",
        "first_answers", "spans", "causes", "explained", "onnxruntime" and, if it failed, "error". Times are seconds
        since the process was started. "causes" adds up to "wall". A failed run ends with its failure, and has the spans
        so far. "ready" is missing if the sessions were never ready.

    Raises:
        InvalidArgument: the way or the cache is unknown, there are no devices, or the file of inputs is no .npz file of
            arrays.
        NoSuchFile: the model, a file that it names or the file of inputs does not exist.
        Error: the model's files could not be removed from the page cache.
    """
    check_name(way)
    if cache not in ("warm", "cold") or not devices:
        raise InvalidArgument(f"trace with a 'warm' or 'cold' cache on some device, not {cache!r} on {list(devices)}")
    model = Path(model)
    if not model.is_file():
        raise NoSuchFile(f"model {model} does not exist")
    from ortmulti.bench.files import read_arrays, write_arrays
    from ortmulti.bench.measure import page_cache

    run: dict[str, Any] = {
        "id": f"{experiment} {way} {'+'.join(devices)} {cache}{'' if instrumented else ' plain'}",
        "experiment": experiment,
        "way": way,
        "devices": list(devices),
        "cache": cache,
        "settings": asdict(settings or SessionSettings()),
        "instrumented": instrumented,
    }
    with tempfile.TemporaryDirectory(prefix="ortmulti-trace-") as name:
        folder = Path(name)
        if feeds is None:
            from ortmulti.bench.models import sample_inputs

            feeds = sample_inputs(model)
        write_arrays(folder / "feeds.npz", read_arrays(feeds) if isinstance(feeds, (str, Path)) else feeds)
        files = [model]
        try:
            files += page_cache.external_files(model)
        except NoSuchFile:
            raise
        except Error:  # ONNX Runtime itself has to refuse the model
            pass
        (page_cache.warm if cache == "warm" else page_cache.drop)(files)
        paths = {"feeds": f"{folder}/feeds.npz", "events": f"{folder}/events", "profiles": f"{folder}/profile-"}
        spec = {**run, "model": str(model.absolute()), **paths}
        _run_process(run, spec, folder, timeout, environment or {})
    return run


def _run_process(
    run: dict[str, Any], spec: dict[str, Any], folder: Path, timeout: float, environment: Mapping[str, str]
) -> None:
    """Run `traced_process.main` in a fresh process with its own process group, which is ended with it.

    The run is filled in, see `assemble.fill`, with "error" if the process failed. The process's files are in `folder`.
    """
    from ortmulti._runtime.child_process import ChildProcess

    from .assemble import Recording, fill
    from .waits import Samples, sampled

    log = folder / "log"
    (folder / "spec.json").write_text(json.dumps(spec))
    with log.open("ab") as output:
        process = ChildProcess(_PRELUDE, [f"{folder}/spec.json"], output=output, environment=environment)
        sampling: contextlib.AbstractContextManager[Samples] = contextlib.nullcontext({})
        if run["instrumented"]:
            sampling = sampled(process.pid, descendants=run["way"] == "processes")
        with sampling as samples:
            try:
                in_time = process.wait(timeout)
            finally:
                ended = time.monotonic_ns()
                process.kill_group()
    recording = Recording(folder, process.started, ended, process.pid, samples)
    if not in_time:
        run["error"] = f"took longer than {timeout:g} seconds and was ended"
    elif failure := recording.one("failed"):
        run["error"] = failure["text"]
    elif not recording.one("answered"):
        run["error"] = f"the process {process.ending(log)}"
    fill(run, recording)
