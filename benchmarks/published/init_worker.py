"""One creation of one session with some options, its first run and later ones; runs in a process of its own."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ortmulti.bench.create.measure_strategy import digest
from ortmulti.bench.files import read_arrays
from ortmulti.bench.onnxruntime_sessions import create_session, open_package
from ortmulti.bench.strategies import SessionSettings, open_strategy


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Creates and runs a session.

    Args:
        spec: "model" (path), "device", "feeds" (path of an .npz file with the inputs), "threads", "runs" (later runs),
            "library" ("onnxruntime" or "ortmulti", which has its usual options). For onnxruntime: "optimize" (whether
            the graph is optimized), "provider_options" and "save" (where the optimized model is saved, or None; what
            is there already is not saved again, and nothing measured), with "external": whether the model's weights lie
            in a file of their own.

    Returns:
        Seconds: "opening" (of the libraries; None for ortmulti, where it is part of the creation), "creation",
        "first_run", "both" (the latter two) and "run" (the median of the later ones). "outputs": the first run's
        digest, see `ortmulti.bench.create.measure_strategy.digest`.
    """
    save = Path(spec["save"]) if spec.get("save") else None
    if save is not None and save.exists():
        return {}
    feeds = read_arrays(spec["feeds"])
    if spec["library"] == "ortmulti":
        return _ours(spec, feeds)
    entries = {}
    options: dict[str, Any] = {"graph_optimization_level": 99 if spec["optimize"] else 0}
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        options["optimized_model_filepath"] = str(save)
        if spec["external"]:
            # Otherwise what is saved names the model's own file, as if it lay in the same folder.
            entries["session.optimized_model_external_initializers_file_name"] = f"{save.name}.data"
    settings = SessionSettings(spec["threads"], spec["provider_options"], entries)
    wanted = settings.spec(spec["model"], spec["device"])
    wanted = replace(wanted, options={**wanted.options, **options})
    begin = time.perf_counter()
    onnxruntime = open_package([wanted.device])
    opening = time.perf_counter() - begin
    begin = time.perf_counter()
    session = create_session(onnxruntime, wanted)
    creation = time.perf_counter() - begin
    return {"opening": opening, **_runs(lambda: session.run(None, feeds), creation, spec["runs"])}


def _ours(spec: dict[str, Any], feeds: dict[str, Any]) -> dict[str, Any]:
    settings = SessionSettings(intra_op_num_threads=spec["threads"])
    with open_strategy("shared", spec["model"], [spec["device"]], settings) as strategy:
        strategy.start()
        creation = strategy.create().wall
        return {"opening": None, **_runs(lambda: strategy.first_run(feeds).outputs[0], creation, spec["runs"])}


def _runs(run: Any, creation: float, count: int) -> dict[str, Any]:
    times = []
    outputs = None
    for _ in range(count + 1):
        begin = time.perf_counter()
        answer = run()
        times.append(time.perf_counter() - begin)
        outputs = outputs or digest(answer)
    return {
        "creation": creation,
        "first_run": times[0],
        "both": creation + times[0],
        "run": statistics.median(times[1:]) if count else None,
        "outputs": outputs,
    }
