"""Weights that processes share: how long a load takes, and how much GPU memory there is.

    python -m benchmarks.shared_weights --json shared.json

Each load is a process of its own, from the call of `load` to its return; rounds in turns. Cases of each encoder:

    own: the process loads the weights itself, from the page cache
    held: another process has them (`ortmulti hold`)
    narrow: as own, of a graph with as many layers, which are 48 wide: what ONNX Runtime takes for such a graph

The model "tiny" has 19 MB of weights. "driver floor" is what the driver itself takes: cuInit and a context. Exit status
1 if an answer differs by a bit, if weights were held and not mapped, or if the last process left memory.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ortmulti
from benchmarks.servers import Server
from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure import fresh_process
from ortmulti.bench.reports.tables import IN_MIB, Column
from ortmulti.bench.script import Script, names, option
from ortmulti.devices.nvml import Nvml

# Layers and hidden size of encoders: BERT-base's, GPT-2 large's, and one of 15 GB.
SIZES = {"tiny": (1, 144), "base": (12, 768), "large": (36, 1280), "15 GB": (16, 4416)}
FLOOR = "driver floor"


def encoder(size: str, hidden: int | None = None) -> Path:
    """Make the encoder of a size, or one with as many layers of another width."""
    layers, width = SIZES[size]
    return models.make("encoder", script.MODELS, layers=layers, hidden=hidden or width).resolve()


def used() -> int:
    """Return the bytes of the first GPU's memory that are in use."""
    with Nvml.open() as nvml:
        gpu = nvml.gpus()[0]
        return int(gpu.memory_total - gpu.memory_free)


class Case(NamedTuple):
    """An encoder, and who has its weights."""

    size: str
    way: str


@dataclass
class SharedWeights(Script[Case]):
    """The options of the command line."""

    kind, columns = "shared weights", (Column("seconds", "load, s"), Column("memory", "GPU, MiB", **IN_MIB, rare=True))
    sizes: tuple[str, ...] = option(("tiny", "base", "large"), f"some of {', '.join(SIZES)}", names)
    repeat: int = option(5, "rounds")

    def cases(self, number: int = 0) -> Sequence[Case]:
        return [Case("", FLOOR), *(Case(size, way) for size in self.sizes for way in ("own", "held", "narrow"))]

    def run(self, progress: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
        before = used()
        document = super().run(progress)
        return {**document, "left": used() - before}

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._expected = {}
        for case in self.cases()[1:]:  # these make the entries of the cache, too
            self._expected[case] = self._load(case, share=False)["answer"]
        for size in self.sizes:
            command = ["-m", "ortmulti.cli", "hold", str(encoder(size)), "--devices", "0"]
            server = Server(command, r"\S+", folder / f"{size}.log")
            self.stack.callback(server.close)

    def _load(self, case: Case, *, share: bool) -> dict[str, Any]:
        return self.fresh({"model": str(encoder(case.size, 48 if case.way == "narrow" else None)), "share": share})

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        if case.way == FLOOR:
            floor = fresh_process.run("ortmulti.bench.measure.floor", {"devices": ["cuda:0"]}, self.timeout)
            return {"seconds": floor["driver_floor"]}
        found = self._load(case, share=case.way == "held")
        problems = found.pop("problems")
        if found.pop("answer") != self._expected[case]:
            problems.append("another answer")
        if case.way == "held" and not found["mapped"]:
            problems.append("the weights were not mapped")
        return {**found, "problems": problems}

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        return [*super().complaints(measurement), *measurement.get("problems", [])]

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        left = [f"{document['left']} bytes are left"] if document["left"] > 2**26 else []
        return [*super().failures(document), *left]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Load once, in this process."""
    before = used()
    begin = time.monotonic()
    pool = ortmulti.load(spec["model"], "cuda:0", share="host" if spec["share"] else None)
    seconds = time.monotonic() - begin
    memory = used() - before
    ids = np.arange(1, 33, dtype=np.int64)[None]
    [answer] = pool.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    spans = [span.name for span in pool.timeline.spans]
    pool.close()
    return {
        "seconds": seconds,
        "memory": memory,
        "answer": hashlib.sha256(answer.tobytes()).hexdigest(),
        "mapped": any(name.startswith("map weights of process") for name in spans),
        "problems": [name for name in spans if name.startswith("not shared")],
    }


if __name__ == "__main__":
    sys.exit(script.main(SharedWeights))
