"""What do models on two GPUs of one process cost each other: a server beside short kernels, and beside loads?

    python -m benchmarks.neighbours phi3-mini:layers=4 tiny-kernels --devices 0,1

The first model answers on the last of the --devices ("long"), the second one on the first ("short"), each for some
clients that wait for their answers; and on the first device the first model is loaded, run once and closed, again and
again ("load"). Each is measured alone and beside the others, with pools and with onnxruntime's sessions, in fresh
processes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

import ortmulti
from ortmulti.bench import models, script
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.rounds import alternating
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option
from ortmulti.bench.serve.clients import NANOSECONDS, ClosedLoop, closed_loop

TOGETHER = ("long", "short", "long+short", "load", "long+load")


class Case(NamedTuple):
    """Whose sessions, and what is done at the same time: names joined by "+"."""

    library: str
    together: str


@dataclass
class Neighbours(Script[Case]):
    """The options of the command line."""

    kind, columns = "neighbours", (
        *(
            Column(f"{one}_{name}", f"{one}, {name}, ms", scale=1e-3)
            for one in ("long", "short")
            for name in ("p50", "p99")
        ),
        Column("load", "a load, s"),
    )  # fmt: skip
    models: Sequence[Path] = option((), "two models: names of `ortmulti models`, or .onnx files")
    devices: tuple[str, ...] = option(("cuda:0", "cuda:1"), "such as 0,1", parse_devices)
    clients: int = option(4, "of each model")
    sequence: int = option(128, "size of open dimensions but the batch")
    seconds: float = option(3.0, "of each measurement")
    repeat: int = option(3, "rounds")

    def cases(self, number: int = 0) -> Sequence[Case]:
        libraries = alternating(["ortmulti", "onnxruntime"], number)
        return [Case(library, together) for together in TOGETHER for library in libraries]


def open_model(library: str, model: str, device: str, stack: ExitStack) -> Callable[[dict[str, Any]], Any]:
    """Return what runs a model on a device, until the stack is closed."""
    if library == "ortmulti":
        return partial(stack.enter_context(ortmulti.load(model, device)).run, None)
    kind, _, number = device.partition(":")
    cuda = ("CUDAExecutionProvider", {"device_id": number})
    session = onnxruntime.InferenceSession(model, providers=[cuda if kind == "cuda" else "CPUExecutionProvider"])
    return partial(session.run, None)


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, in this process: quantiles of the latencies in seconds, and the median of the loads' times."""
    library, together = spec["library"], spec["together"].split("+")
    first, *_, last = spec["devices"]
    long, short = spec["models"]
    feeds = {model: models.sample_inputs(model, sequence=spec["sequence"], seed=1) for model in (long, short)}

    def load() -> None:
        with ExitStack() as own:
            open_model(library, long, first, own)(feeds[long])

    asks: dict[str, list[Callable[[], Any]]] = {"load": [load]}
    with ExitStack() as stack:
        for name, model, device in (("long", long, last), ("short", short, first)):
            if name in together:
                run = open_model(library, model, device, stack)
                run(feeds[model])
                asks[name] = [partial(run, feeds[model])] * spec["clients"]
        loops = {name: stack.enter_context(ClosedLoop(asks[name])) for name in together}
        for loop in loops.values():
            loop.until_answered()
        begin = time.perf_counter_ns()
        for loop in loops.values():
            _, end = loop.go_on(spec["seconds"] / len(loops))
    found: dict[str, Any] = {}
    for name, loop in loops.items():
        answers = [one for own in loop.answers for one in own]
        if name == "load":
            # All loads: the last one ends after the window, as the loop waits for it.
            found["load"] = statistics.median((done - asked) / NANOSECONDS for asked, done in answers)
        else:
            latency = closed_loop(answers, begin, end)["latency"]
            found |= {f"{name}_{quantile}": latency[quantile] for quantile in ("p50", "p99")}
    return found


if __name__ == "__main__":
    sys.exit(script.main(Neighbours))
