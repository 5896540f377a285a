"""How much memory does a repository on the CPU take beside its budget, and what gives it back?

The models of a folder take turns within a budget, under a few clients. Each setting of the C library's malloc has
processes of its own.

    python -m benchmarks.repository_memory FOLDER/*.onnx --budget 25MiB --json memory.json
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import ortmulti
from ortmulti.bench import script
from ortmulti.bench.measure.rounds import alternating
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option
from ortmulti.create.sample_inputs import first_fit, growing_inputs

SETTINGS = ("", "MALLOC_MMAP_THRESHOLD_=1048576", "MALLOC_TRIM_THRESHOLD_=131072", "MALLOC_ARENA_MAX=2")
FIGURES = ("before", "peak", "idle", "counted", "unloaded")
CLIENTS = 4


@dataclass
class RepositoryMemory(Script[str]):
    """The options of the command line."""

    kind = "repository memory"
    columns = tuple(Column(name, f"{name}, MB", scale=1e6) for name in FIGURES)
    models: Sequence[Path] = option((), ".onnx files")
    budget: str = option("25MiB", "host_memory of the repository")
    evictions: int = option(200, "how often a model slept for others at the end")
    batch: int = option(16, "size of the inputs' batch dimension")
    repeat: int = option(3, "processes of each setting")

    def cases(self, number: int = 0) -> Sequence[str]:
        return alternating(SETTINGS, number)

    def measure(self, case: str, number: int) -> dict[str, Any]:
        return self.fresh({}, dict([case.split("=")]) if case else None)


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One process: the models wake and sleep until so many slept for others; bytes of memory."""
    feeds, resident = {}, psutil.Process().memory_info
    for path in spec["models"]:
        with ortmulti.InferenceSession(path, providers=["CPUExecutionProvider"]) as session:

            def run(feed: dict[str, Any], session: ortmulti.InferenceSession = session) -> dict[str, Any]:
                session.run(None, feed)
                return feed

            feeds[path] = first_fit(growing_inputs(session.get_inputs(), spec["batch"]), run)
    before = resident().rss
    with ortmulti.ModelRepository("cpu", host_memory=spec["budget"]) as repository:
        for path in spec["models"]:
            repository.add(path, path)

        def slept() -> int:
            return sum(device.evictions for model in repository.stats().models.values() for device in model.devices)

        def ask(client: int) -> None:
            numbers = random.Random(client)
            while slept() < spec["evictions"]:
                name = numbers.choice(list(feeds))
                repository.run(name, feeds[name])

        with ThreadPoolExecutor(CLIENTS) as threads:
            list(threads.map(ask, range(CLIENTS)))
        idle, counted = resident().rss, repository.stats().devices[0].used
        peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
        for name in feeds:
            repository.unload(name)
        # The kernel's two counters differ by some pages.
        figures = (before, max(peak, idle), idle, counted, resident().rss)
    return dict(zip(FIGURES, figures, strict=True))


if __name__ == "__main__":
    sys.exit(script.main(RepositoryMemory))
