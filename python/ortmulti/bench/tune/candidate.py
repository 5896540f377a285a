"""A candidate's process: makes the model ready, and measures a block of runs for each request."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti._runtime import background
from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.bench.measure import outputs
from ortmulti.errors import Error
from ortmulti.loading.tuning import apply

_WARM_UP_RUNS = 3
_WARM_UP_RUNS_OF_GPU_POOLS = 25  # after 20 a shape gets CUDA graphs
_WARM_UP_SECONDS = 0.5

_UNCOUNTED_PART = 0.2  # of a block: caches and threads have cooled down while others were measured


@contextlib.contextmanager
def prepared(spec: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
    """Make a model ready, and yield the function that runs it once and returns the outputs.

    The spec has "model" (path), "devices", "options" (names and values), "through" ("pool" or "session") and "feeds",
    an .npz file with the inputs; if it does not exist, random inputs are written there.
    """
    applied = apply(spec["options"])
    if applied.left_out:
        raise ortmulti.Fail("; ".join(applied.left_out))
    model: ortmulti.Pool | ortmulti.InferenceSession
    given = applied.provider_options
    if spec["through"] == "pool":
        model = ortmulti.load(
            spec["model"], spec["devices"], options=applied.options, provider_options=given or None, **applied.load
        )
    else:
        kind, _, index = spec["devices"][0].partition(":")
        cuda = ("CUDAExecutionProvider", {"device_id": index, **given})
        providers = ["CPUExecutionProvider"] if kind == "cpu" else [cuda]
        model = ortmulti.InferenceSession(spec["model"], applied.options, providers)
    with model:
        feeds = Path(spec["feeds"])
        if not feeds.exists():
            write_arrays(feeds, _made_up(spec["model"]))
        yield partial(model.run, None, read_arrays(feeds))


def _made_up(model: str) -> dict[str, Any]:
    """Return random inputs that fit the model's declaration."""
    from ortmulti.create.sample_inputs import first_fit, growing_inputs

    # Runs that do not fit would leave their memory in the model, and count as what the defaults take.
    plain = ortmulti.SessionOptions()
    plain.graph_optimization_level = ortmulti.GraphOptimizationLevel.ORT_DISABLE_ALL
    with ortmulti.InferenceSession(model, plain, ["CPUExecutionProvider"]) as session:

        def run(feed: dict[str, Any]) -> dict[str, Any]:
            session.run(None, feed)
            return feed

        return first_fit(growing_inputs(session.get_inputs()), run)


def warm_up(spec: Mapping[str, Any], run: Callable[[], Any]) -> list[outputs.Array]:
    """Run a few times, until what a pool makes behind its runs is there, and return the last outputs."""
    on_gpu = spec["through"] == "pool" and any(device.startswith("cuda") for device in spec["devices"])
    if on_gpu and spec["measure"] == "throughput":
        throughput(run, _WARM_UP_SECONDS, spec["clients"])  # there are as many graphs as requests at once
    for _ in range(_WARM_UP_RUNS_OF_GPU_POOLS * len(spec["devices"]) if on_gpu else _WARM_UP_RUNS):
        run()
    background.wait()
    return outputs.flatten(run())


def latency(run: Callable[[], Any], seconds: float) -> float:
    """Return the median seconds of single runs, after some that do not count."""
    clock = time.perf_counter
    times: list[float] = []
    counted = clock() + seconds * _UNCOUNTED_PART
    while True:
        before = clock()
        run()
        after = clock()
        if before >= counted:
            times.append(after - before)
            if after >= counted + seconds:
                return statistics.median(times)


# Imports are where they are used: they would be part of what a process takes to its first answer.
def throughput(run: Callable[[], Any], seconds: float, clients: int) -> float:
    """Return seconds per answer with so many clients; each sends a request after each answer."""
    from ortmulti.bench.serve.clients import ClosedLoop

    def answered() -> int:
        return sum(begin <= done < end for client in loop.answers for _, done in client)

    with ClosedLoop([run] * clients) as loop:
        loop.until_answered()
        begin, end = loop.go_on(seconds)
        # A few answers tell little of what is done in between.
        while (answers := answered()) < 2 * clients and end - begin < 20e9 * seconds:
            _, end = loop.go_on(seconds)
    return (end - begin) / 1e9 / max(1, answers)


def main() -> None:
    """Measure for `candidate_process`: the arguments are the descriptor of a socket, and the spec as JSON.

    The spec is that of `prepared`, with "measure" (an objective), "block_seconds", "clients" and "spawned" (the
    process's start, in seconds of `time.monotonic`). Answers are pickled dicts. The first one has the "outputs" of the
    first runs. For "creation" it also has "first_answer", the seconds since the process was started. For "memory" it
    has the bytes by which memory has grown since the package was imported: "pss" of the process, and "gpu_memory" by
    device. Each byte that arrives asks for one more block of runs, whose "cost" is answered. The process ends with the
    socket.
    """
    number, text = sys.argv[1:]
    spec = json.loads(text)
    with socket.socket(fileno=int(number)) as channel:

        def reply(**answer: Any) -> None:
            channel.sendall(pickle.dumps(answer))

        try:  # the process is killed after its last answer, so sessions are closed before
            if spec["measure"] == "creation":  # in a process that has done nothing else
                with prepared(spec) as run:
                    found, answered = run(), time.monotonic() - spec["spawned"]
                reply(outputs=outputs.flatten(found), first_answer=answered)
            elif spec["measure"] == "memory":
                from ortmulti.bench.measure import memory

                pss, used = memory.process_memory().pss, memory.gpu_memory_used()
                with prepared(spec) as run:
                    warm, grown = warm_up(spec, run), memory.process_memory().pss - pss
                    growth = memory.gpu_memory_growth(used, memory.gpu_memory_used(), spec["devices"])
                reply(outputs=warm, pss=grown, gpu_memory=growth)
            else:
                seconds, clients = spec["block_seconds"], spec["clients"]
                with prepared(spec) as run:
                    reply(outputs=warm_up(spec, run))
                    while channel.recv(1):
                        alone = spec["measure"] == "latency"
                        reply(cost=latency(run, seconds) if alone else throughput(run, seconds, clients))
        except Exception as error:
            reply(error=str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}")
