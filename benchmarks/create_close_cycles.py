"""Does memory grow when sessions are created, run and closed over and over?

Each library does its cycles in processes of its own; the resident memory after the first --warm cycles is compared with
that after the last.

    python -m benchmarks.create_close_cycles --json cycles.json

Exit status 1 if ours grows by more than onnxruntime's does plus --allowance.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure.rounds import alternating
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option


@dataclass
class Cycles(Script[str]):
    """The options of the command line."""

    kind = "create and close"
    columns = tuple(Column(name, f"{name}, MB", scale=1e6) for name in ("warm", "end", "growth"))
    count: int = option(200, "cycles")
    warm: int = option(50, "cycles before the first reading")
    repeat: int = option(3, "processes of each library")
    device: str = option("cpu", "cpu or cuda:N")
    allowance: float = option(2.0, "MB")

    def cases(self, number: int = 0) -> Sequence[str]:
        return alternating(["ortmulti", "onnxruntime"], number)

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self.models = [models.make("matmul", folder, megabytes=4)]

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        ours, theirs = (row["growth"]["median"] if row["growth"] else 0 for row in document["rows"])
        grown = (ours - theirs) / 1e6 > document["settings"]["allowance"]
        return [
            *super().failures(document),
            *([f"{(ours - theirs) / 1e6:.1f} MB more than onnxruntime"] if grown else []),
        ]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Create, run and close a session again and again, in this process."""
    library: Any = importlib.import_module(spec["case"])
    [path], device = spec["models"], spec["device"]
    cuda = ("CUDAExecutionProvider", {"device_id": device.removeprefix("cuda:")})
    feed, memory = models.sample_inputs(path), []
    for _ in range(spec["count"]):
        session = library.InferenceSession(path, providers=["CPUExecutionProvider" if device == "cpu" else cuda])
        session.run(None, feed)
        if spec["case"] == "ortmulti":
            session.close()
        del session
        gc.collect()
        memory.append(psutil.Process().memory_info().rss)
    warm, end = memory[spec["warm"] - 1], memory[-1]
    return {"warm": warm, "end": end, "growth": end - warm}


if __name__ == "__main__":
    sys.exit(script.main(Cycles))
