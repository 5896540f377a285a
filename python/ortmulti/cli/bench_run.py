"""`ortmulti bench run`: throughput and latency of pools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ortmulti.bench import models
from ortmulti.bench.measure import devices
from ortmulti.bench.serve.plan import RunPlan, doubling
from ortmulti.errors import NoSuchFile

from . import options as shared
from .bench import check_plot, conduct
from .output import bytes_written


def bench_run(
    model: Annotated[
        list[str],
        typer.Argument(
            help=".onnx files, or generated models such as resnet50:precision=fp16 (`ortmulti models list`).",
            show_default=False,
        ),
    ],
    device_text: shared.Devices = "all",
    counts: Annotated[
        str | None,
        typer.Option(help="Numbers of devices, such as 1,2,4 (default: 1, 2, 4, ... and all)."),
    ] = None,
    variants: Annotated[
        str,
        typer.Option(
            help="core: a pool; threads and processes: onnxruntime in them. Each may end with +sessions=N, core also "
            "with +in_flight=N, +graph or +graph=off."
        ),
    ] = "core,threads,processes",
    batch: Annotated[str, typer.Option(help="Batch sizes, such as 1,32.")] = "1",
    sequence: shared.Sequences = 16,
    inputs: Annotated[str, typer.Option(help="Where inputs lie: host, or device (core only).")] = "host",
    outputs: Annotated[str, typer.Option(help="Where outputs stay: host, or device (core only).")] = "host",
    in_flight: Annotated[int, typer.Option(help="Requests in flight for each session in the closed loop.")] = 4,
    rate: Annotated[
        str | None,
        typer.Option(
            help="Also measure open loops: at 200,400 requests a second, or 0.5x,0.8x of the closed loop's rate."
        ),
    ] = None,
    seconds: shared.Seconds = 3.0,
    warm_seconds: shared.WarmSeconds = 1.0,
    repeat: Annotated[int, typer.Option(help="Rounds, with a new process for every case.")] = 5,
    ceiling: Annotated[
        bool, typer.Option(help="Also measure a model that does nothing, which gives the highest possible rate.")
    ] = True,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of each session (default: the pool's choice).")
    ] = None,
    provider_option: shared.ProviderOptions = None,
    config: shared.ConfigEntries = None,
    folder: Annotated[Path, typer.Option("--models", help="The folder for generated models.")] = Path("models"),
    timeout: shared.Timeout = 600.0,
    json: shared.JsonFile = None,
    plot: shared.Plot = None,
    markdown: shared.Markdown = None,
    details: shared.Details = False,
) -> None:
    """Compare the throughput and latency of pools, and of onnxruntime in threads, on one device and on several.

    A closed loop keeps a fixed number of requests in flight. An open loop sends requests at a given rate and counts
    latency from when a request was to arrive.
    """
    available = devices.parse_devices(device_text)
    plan = RunPlan(  # wrong arguments are found before models are made
        models=[Path()],
        device_sets=devices.device_sets(
            available, doubling(len(available)) if counts is None else devices.parse_counts(counts)
        ),
        variants=[name.strip() for name in variants.split(",")],
        rates=rate.split(",") if rate is not None else [],
        in_flight=in_flight,
        batches=devices.parse_counts(batch, "batch sizes, such as 1,32"),
        sequence=sequence,
        inputs=inputs,
        outputs=outputs,
        repeat=repeat,
        seconds=seconds,
        warm_seconds=warm_seconds,
        ceiling=ceiling,
        intra_op_num_threads=threads,
        provider_options=shared.name_values(provider_option),
        config_entries=shared.name_values(config),
        timeout=timeout,
    )
    check_plot(plot)
    plan.models = make_models(model, folder)
    conduct(plan, json, plot, markdown, details)


def make_models(texts: Sequence[str], folder: Path) -> list[Path]:
    """Return the models' paths, and make generated models that `folder` does not have.

    Args:
        texts: paths of .onnx files, and names of generated models as `ortmulti.bench.models.parse` takes them.
        folder: for the generated ones.

    Raises:
        InvalidArgument: a name that is neither a file nor a model.
        NoSuchFile: an .onnx file that does not exist.
    """
    named: list[Path | tuple[str, dict[str, Any]]] = []
    for text in texts:  # all of them before any is made
        path = Path(text)
        if path.suffix == ".onnx" and not path.is_file():
            raise NoSuchFile(f"model {path} does not exist")
        named.append(path if path.is_file() else models.parse(text))
    paths = []
    for one in named:
        if isinstance(one, tuple):
            name, options = one
            with bytes_written(f"making {name} in {folder}") as written:
                one = models.make(name, folder, **options, progress=written)
        paths.append(one)
    return list(dict.fromkeys(paths))
