"""Traces the time of one fresh process, from its start to the first answer of every session: see `trace`."""

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
from ortmulti.errors import InvalidArgument

__all__ = ["trace"]

# What the process runs. The time is read before anything is imported that an interpreter does not have from its start.
_PRELUDE = """
import time
steps = [time.monotonic_ns()]
import numpy
steps.append(time.monotonic_ns())
import ortmulti
steps.append(time.monotonic_ns())
import json, sys
from ortmulti.bench.diagnose.trace import traced_process
steps.append(time.monotonic_ns())
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

    Returns:
        A run: "way", "devices", "cache", "settings", "instrumented", "wall", "ready", "first_answers", "spans",
        "causes", "explained", "onnxruntime" and, if it failed, "error". Times are seconds since the process was
        started. "causes" adds up to "wall". A failed run ends with its failure, and has the spans so far. "ready" is
        missing if the sessions were never ready.

    Raises:
        InvalidArgument: the way or the cache is unknown, there are no devices, or the file of inputs is no .npz file of
            arrays.
        InvalidProtobuf: the model's file is no model.
        NoSuchFile: the model, a file that it names or the file of inputs does not exist.
        Error: the model's files could not be removed from the page cache.
    """
    check_name(way)
    if cache not in ("warm", "cold") or not devices:
        raise InvalidArgument(f"trace with a 'warm' or 'cold' cache on some device, not {cache!r} on {list(devices)}")
    # Here, since the traced process imports this module.
    from ortmulti._runtime.child_process import ChildProcess
    from ortmulti.bench.files import read_arrays, write_arrays
    from ortmulti.bench.measure import page_cache
    from ortmulti.bench.models import sample_inputs

    from .assemble import Recording, fill
    from .waits import Samples, sampled

    model = Path(model)
    files = (model, *page_cache.external_files(model))
    run: dict[str, Any] = {
        "way": way,
        "devices": list(devices),
        "cache": cache,
        "settings": asdict(settings or SessionSettings()),
        "instrumented": instrumented,
    }
    with tempfile.TemporaryDirectory(prefix="ortmulti-trace-") as name:
        folder = Path(name)
        if feeds is None:
            feeds = sample_inputs(model)
        elif not isinstance(feeds, Mapping):
            feeds = read_arrays(feeds)
        write_arrays(folder / "feeds.npz", feeds)
        (page_cache.warm if cache == "warm" else page_cache.drop)(files)
        (folder / "spec.json").write_text(json.dumps({**run, "model": str(model.absolute()), "folder": name}))
        with (folder / "log").open("ab") as output:
            process = ChildProcess(_PRELUDE, [f"{name}/spec.json"], output=output, environment=environment)
            sampling: contextlib.AbstractContextManager[Samples] = contextlib.nullcontext({})
            if instrumented:
                sampling = sampled(process.pid, descendants=way == "processes")
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
            run["error"] = f"the process {process.ending(recording.log)}"
        fill(run, recording)
    return run
