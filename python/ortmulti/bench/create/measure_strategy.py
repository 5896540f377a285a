"""One measurement of one strategy; runs in a process of its own."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortmulti.bench.files import read_arrays
from ortmulti.bench.measure.memory import figures, gpu_memory_used
from ortmulti.bench.strategies import SessionSettings, open_strategy
from ortmulti.bench.strategies.base import Array

_SESSIONS = "from ortmulti import SessionOptions, create_sessions"
IMPORTS = {"native": _SESSIONS, "shared": _SESSIONS}
"""What strategies import before their first call, by their names. It counts as creation, as does the import of
onnxruntime for the others. The call itself imports the rest."""


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Create and run the sessions once.

    Args:
        spec: "strategy", "model" (path), "devices", "settings" (the fields of `SessionSettings`), "feeds" (path of an
            .npz file with the inputs) and "import_seconds" (the time to import ortmulti and `IMPORTS`). If there is
            "before": "contexts" makes the CUDA contexts beforehand, and a path creates sessions of that model. "url",
            where the model is in a store: ortmulti's strategies load that, others download it first.

    Returns:
        Seconds: "starting", "creation" (wall), "download" (of that, or None), "sessions" (each session's creation),
        "first_run" (wall).
        "not_shared": reasons, see `Creation`. Bytes: "peak_rss", "pss", "gpu_memory" (by device);
        "processes" counts them. "outputs": for each session a digest of its outputs, see `digest`.
    """
    feeds = read_arrays(spec["feeds"])
    used_before = gpu_memory_used()
    settings = SessionSettings(**spec["settings"])
    before = spec.get("before", "nothing")
    imports = spec["strategy"] in IMPORTS and before == "nothing"  # else they were there before
    with (
        contextlib.ExitStack() as stack,  # left after the sessions are closed
        open_strategy(spec["strategy"], spec["model"], spec["devices"], settings) as strategy,
    ):
        starting = strategy.start()
        if before == "contexts":
            strategy.make_contexts()
        elif before != "nothing":
            model, strategy.model = strategy.model, Path(before)
            strategy.create()
            strategy.model = model
        downloading: float | None = None
        if (url := spec.get("url")) and spec["strategy"] in IMPORTS:
            strategy.model = url
        elif url:
            begin = time.monotonic()
            from ortmulti.bench.measure.download import download

            strategy.model = download(url, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ortmulti-"))))
            downloading = time.monotonic() - begin
        creation = strategy.create()
        first_run = strategy.first_run(feeds)
        memory = figures(used_before, spec["devices"])
        return {
            "starting": starting,
            # The other strategies do not need ortmulti.
            "creation": creation.wall + (downloading or 0.0) + (spec["import_seconds"] if imports else 0.0),
            "download": downloading,
            "sessions": creation.sessions,
            "not_shared": creation.not_shared,
            "first_run": first_run.wall,
            **memory,
            "outputs": [digest(outputs) for outputs in first_run.outputs],
        }


def digest(outputs: Sequence[Array]) -> str:
    """SHA-256 over the outputs in order: type, shape and bytes of each. Equal digests mean bit-for-bit equality."""
    total = hashlib.sha256()
    for output in outputs:
        total.update(f"{output.dtype.str}{output.shape};".encode())
        # An array of Python strings has no bytes of its own; its texts stand for them.
        payload = repr(output.tolist()).encode() if output.dtype.hasobject else np.ascontiguousarray(output).tobytes()
        total.update(payload)
    return total.hexdigest()
