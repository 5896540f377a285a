"""`ortmulti bench repository`: latencies of many models behind a budget of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortmulti.bench.repository.plan import Repository

from .bench import conduct
from .options import Batch, JsonFile, OneDevice, Seconds, Sequences, Timeout, WarmSeconds, one_device


def bench_repository(
    model: Annotated[
        list[Path], typer.Argument(help="Several .onnx files, the most popular one first.", show_default=False)
    ],
    budget: Annotated[str, typer.Option(help="The memory for models, in bytes or such as 8GiB.")],
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests a second (default: 60% of what all models awake could answer, or 40% of what wakes allow, "
            "whichever is less)."
        ),
    ] = None,
    seconds: Seconds = 20.0,
    warm_seconds: WarmSeconds = 5.0,
    device: OneDevice = "all",
    burst: Annotated[
        bool,
        typer.Option(
            "--burst",
            help="Load only models that fit into the budget together. Every second another one gets 20 requests.",
        ),
    ] = False,
    repeat: Annotated[int, typer.Option(help="Rounds, with new processes.")] = 1,
    batch: Batch = 1,
    sequence: Sequences = 16,
    timeout: Timeout = 1800.0,
    json: JsonFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw latencies and which models were awake, as .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Measure the latencies of many models behind a budget of memory.

    A model repository is compared with one that has room for all models, with onnxruntime's sessions created on demand,
    and with a simulation. The exit status is 1 if an answer differs, a request failed, or the budget was exceeded.
    """
    experiment = Repository(
        list(dict.fromkeys(model)),
        one_device(device),
        budget,
        burst=burst,
        rate=rate,
        seconds=seconds,
        warm_seconds=warm_seconds,
        repeat=repeat,
        batch=batch,
        sequence=sequence,
        timeout=timeout,
    )
    conduct(experiment, json, plot)
