"""Traces the time of one fresh process, from its start to the first answer of every session.

from ortmulti.bench.diagnose.trace import trace

run = trace("model.onnx", "threads", ["cuda:0", "cuda:1"])
print(run["wall"], run["causes"], run["explained"])
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ortmulti.bench.strategies import SessionSettings, check_name
from ortmulti.bench.strategies.base import Array
from ortmulti.errors import Error, InvalidArgument, NoSuchFile

__all__ = ["trace"]


def trace(
    model: str | Path,
    way: str,
    devices: Sequence[str],
    *,
    settings: SessionSettings | None = None,
    cache: Literal["warm", "cold"] = "warm",
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
    from ortmulti.bench.measure import page_cache

    from .assemble import fill
    from .launch import launch

    options = asdict(settings or SessionSettings())
    run: dict[str, Any] = {
        "id": f"{experiment} {way} {'+'.join(devices)} {cache}{'' if instrumented else ' plain'}",
        "experiment": experiment,
        "way": way,
        "devices": list(devices),
        "cache": cache,
        "settings": options,
        "instrumented": instrumented,
    }
    with tempfile.TemporaryDirectory(prefix="ortmulti-trace-") as name:
        folder = Path(name)
        feeds_file = folder / "feeds.npz"
        _save(feeds, model, feeds_file)
        files = (model, *_external_files(model))
        (page_cache.warm if cache == "warm" else page_cache.drop)(files)
        spec = {
            "way": way,
            "model": str(model.absolute()),
            "devices": list(devices),
            "settings": options,
            "feeds": str(feeds_file.absolute()),
            "instrumented": instrumented,
        }
        recording, problem = launch(spec, folder, timeout, environment or {}, instrumented, way == "processes")
        if problem is not None:
            run["error"] = problem
        fill(run, recording)
    return run


def _save(feeds: Mapping[str, Array] | str | Path | None, model: Path, file: Path) -> None:
    from ortmulti.bench.files import read_arrays, write_arrays

    if feeds is None:
        from ortmulti.bench.models import sample_inputs

        feeds = sample_inputs(model)
    write_arrays(file, read_arrays(feeds) if isinstance(feeds, (str, Path)) else feeds)


def _external_files(model: Path) -> tuple[Path, ...]:
    from ortmulti.bench.measure import page_cache

    try:
        return page_cache.external_files(model)
    except NoSuchFile:
        raise
    except Error:  # ONNX Runtime itself has to refuse the model
        return ()
