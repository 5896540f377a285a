"""`ortmulti bench batching`: which sessions and batches suit a model and its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortmulti.bench.batching import Settings

from .bench import conduct
from .options import JsonFile, Markdown, Model, OneDevice, Seconds, Sequences, Timeout, one_device


def bench_batching(
    model: Model,
    device: OneDevice = "all",
    clients: Annotated[int, typer.Option(help="Threads that send one request after another.")] = 32,
    inputs: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="An .npz file with one request (default: random, of one row)."),
    ] = None,
    sequence: Sequences = 16,
    seconds: Seconds = 3.0,
    repeat: Annotated[int, typer.Option(help="Rounds, with a new process for every setting.")] = 3,
    timeout: Timeout = 600.0,
    json: JsonFile = None,
    markdown: Markdown = None,
) -> None:
    """Compare sessions, threads and batches of a pool for a model and its number of clients.

    The table has answers a second, latencies, processor time of an answer, requests in a run, and memory.
    """
    experiment = Settings(
        [model],
        one_device(device),
        clients=clients,
        input=inputs,
        sequence=sequence,
        seconds=seconds,
        warm_seconds=min(1.0, seconds),
        repeat=repeat,
        timeout=timeout,
    )
    conduct(experiment, json, markdown=markdown)
