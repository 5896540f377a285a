"""Measures which sessions and batches of a pool suit a model and clients that each wait for their answer."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti.bench.experiment import Experiment, Json
from ortmulti.bench.files import read_arrays
from ortmulti.bench.measure import fresh_process
from ortmulti.bench.measure.memory import figures, gpu_memory_used
from ortmulti.bench.measure.rounds import alternating
from ortmulti.bench.models import sample_inputs
from ortmulti.bench.reports.tables import IN_MIB, Column, Report, Sheet, model_text, times_text, whole
from ortmulti.bench.serve.clients import ClosedLoop, closed_loop
from ortmulti.errors import InvalidArgument

BASE = "one at a time"


def settings_of(device: str) -> dict[str, dict[str, Any]]:
    """Return the settings that are compared on a device, by name: arguments of `load`, as JSON can carry them."""
    found: dict[str, dict[str, Any]] = {BASE: {}, "two sessions": {"sessions_per_device": 2}}
    if device == "cpu":
        cores = len(os.sched_getaffinity(0))
        found[f"{cores} sessions of one thread"] = {"sessions_per_device": cores, "threads": 1}
    return found | {
        "batches of 16": {"batching": [16, 0.0]},
        "batches of 64, 2 ms": {"batching": [64, 2.0]},
        "two sessions, batches of 16": {"sessions_per_device": 2, "batching": [16, 0.0]},
    }


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure a setting once, in a process of its own.

    Args:
        spec: "model", "device", "setting" (see `settings_of`), "clients", "seconds", "warm_seconds", "sequence", and
            "input", the path of an .npz file with a request, or None.

    Returns:
        "throughput" and "latency" (see `closed_loop`), "cpu" in seconds of an answer, "requests_a_run", and the memory.
        Or "skipped": why the model cannot have this setting.
    """
    before = gpu_memory_used()
    options = dict(spec["setting"])
    if joins := options.pop("batching", None):
        options["batching"] = ortmulti.Batching(*joins)
    if threads := options.pop("threads", None):
        options["options"] = ortmulti.SessionOptions()
        options["options"].intra_op_num_threads = threads
    given = spec["input"]
    feed = sample_inputs(spec["model"], 1, spec["sequence"]) if given is None else read_arrays(given)
    try:
        pool = ortmulti.load(spec["model"], spec["device"], warmup=True, **options)
    except InvalidArgument as error:
        if joins:
            return {"skipped": str(error).partition("\n")[0]}
        raise
    with pool:
        asks = [lambda: pool.run(feed)] * spec["clients"]
        with ClosedLoop(asks) as loop:
            loop.until_answered()
            loop.go_on(spec["warm_seconds"])
            earlier, busy = pool.stats().devices[0], time.process_time()
            begin, end = loop.go_on(spec["seconds"])
            busy = time.process_time() - busy
            later = pool.stats().devices[0]
            memory = figures(before, [spec["device"]])
        found = closed_loop(itertools.chain.from_iterable(loop.answers), begin, end)
    done = later.done - earlier.done
    return {
        "throughput": found["throughput"],
        "latency": found["latency"],
        "cpu": busy / max(1, done),
        "requests_a_run": done / max(1, later.runs - earlier.runs),
        **memory,
    }


# --- What it says -----------------------------------------------------------------------------------------------------

_MS: Any = {"scale": 1e-3}

COLUMNS = (
    Column("throughput", "answers/s", text=whole),
    Column("p50", "p50, ms", lambda one: one["latency"] and one["latency"]["p50"], **_MS),
    Column("p99", "p99, ms", lambda one: one["latency"] and one["latency"]["p99"], **_MS),
    Column("cpu", "processor, ms an answer", **_MS),
    Column("requests_a_run", "requests a run"),
    Column("pss", "memory, MiB", **IN_MIB),
    Column("gpu", "GPU memory, MiB", lambda one: sum(one["gpu_memory"].values()) or None, rare=True, **IN_MIB),
)


def headline(document: Json) -> str:
    """Return one sentence: which setting answers most, and over what."""
    settings = document["settings"]
    where = f"{document['models'][0]['name']} on {settings['device']}, {settings['clients']} clients"
    good = [row for row in document["rows"] if row["throughput"]]
    if not good:
        return f"{where}: nothing was measured."
    best = max(good, key=lambda row: float(row["throughput"]["median"]))
    if best["case"] == BASE:
        return f"{where}: nothing answers more than {BASE}."
    gain = best["gain"]
    text = f"{where}: most answers by {best['case']}"
    if gain is None:
        return f"{text}."
    times = f"{gain['median']:.2f}"
    if settings["repeat"] == 1:
        return f"{text}, {times} times those of {BASE}, measured once: --repeat shows whether that lasts."
    return f"{text}, {times} ({gain['low']:.2f} to {gain['high']:.2f}) times those of {BASE}."


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield the table."""
    settings = document["settings"]
    title = f"{model_text(document['models'][0])}, {settings['clients']} clients, "
    title += times_text(settings["repeat"], "repetition")
    yield Sheet(title, [Column("case", "setting")], COLUMNS, document["rows"])


def notes(document: Json, _details: bool) -> str:
    """Return what the table cannot say."""
    skipped = {one["case"]: one["skipped"] for one in document["measurements"] if "skipped" in one}
    lines = [
        "Medians, below them the ranges. Clients are threads that send one request each, and wait for the answer. "
        "A web server beside them takes cores, too: fewer sessions or threads may be better then.",
        *(f"{case}: not for this model: {reason}" for case, reason in skipped.items()),
    ]
    return "\n".join(lines)


REPORT = Report(headline, sheets, notes)


@dataclass
class Settings(Experiment[str]):
    """The settings of a pool in turns, each in a fresh process.

    Attributes: the options of `ortmulti bench batching`; `models` is one .onnx file.
    """

    kind, report, columns = "pool settings", REPORT, COLUMNS

    models: Sequence[Path]
    device: str = "cpu"
    clients: int = 32
    input: Path | None = None
    sequence: int = 16
    seconds: float = 3.0
    warm_seconds: float = 1.0
    repeat: int = 3
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured: `InvalidArgument`, or an error of `read_arrays`."""
        self.check_at_least(repeat=1, clients=1, sequence=1, warm_seconds=0)
        self.check_positive("seconds")
        if self.input is not None:
            read_arrays(self.input)

    def cases(self, number: int = 0) -> list[str]:
        return alternating(list(settings_of(self.device)), number)

    def measure(self, case: str, number: int) -> dict[str, Any]:  # noqa: ARG002
        [model] = self.models
        spec = {**self.settings(), "model": str(model), "setting": settings_of(self.device)[case]}
        return fresh_process.run(__name__, spec, self.timeout)

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Mapping[str, Json]]) -> dict[str, Any]:  # noqa: ARG002
        return {"gain": None if case == BASE else self.over(case, BASE, rounds, "throughput")}
