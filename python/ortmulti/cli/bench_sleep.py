"""`ortmulti bench sleep`: how long pools sleep and wake, and what a sleeping one keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortmulti.bench.sleep import Sleep

from .bench import conduct
from .options import Batch, JsonFile, OneDevice, Sequences, Timeout, one_device


def bench_sleep(
    model: Annotated[list[Path], typer.Argument(help=".onnx files.", show_default=False)],
    device: OneDevice = "all",
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of sleep: files and pinned (weights come from the files or a pinned copy), and session "
            "(default: all; on the CPU session).",
        ),
    ] = None,
    graphs: Annotated[bool, typer.Option("--graphs", help="Capture CUDA graphs.")] = False,
    repeat: Annotated[int, typer.Option(help="Rounds of all kinds.")] = 10,
    sleeps: Annotated[
        int,
        typer.Option(
            "--random",
            metavar="N",
            help="Also sleep N times at random times while four threads send requests. All answers are compared bit "
            "for bit, and the memory after 100 sleeps with that at the end.",
        ),
    ] = 0,
    batch: Batch = 1,
    sequence: Sequences = 16,
    timeout: Timeout = 1800.0,
    json: JsonFile = None,
) -> None:
    """Measure how long a pool sleeps and wakes, and what a sleeping pool keeps.

    A wake is compared with a copy from pinned memory and with creating onnxruntime's session again. The exit status is
    1 if an answer differs.
    """
    experiment = Sleep(
        list(dict.fromkeys(model)),
        one_device(device),
        kinds=[name.strip() for name in kinds.split(",")] if kinds is not None else None,
        graphs=graphs,
        repeat=repeat,
        random=sleeps,
        batch=batch,
        sequence=sequence,
        timeout=timeout,
    )
    conduct(experiment, json)
