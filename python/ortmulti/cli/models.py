"""`ortmulti models`: models with random weights, for measuring; and the models of `ortmulti bench --demo`."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ortmulti import _core
from ortmulti.bench import models
from ortmulti.bench.measure.machine import available_memory
from ortmulti.cli.output import bytes_written, print_json, say, table

app = typer.Typer(help="Make models of known shape and size, with seeded random weights.", no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_models(json: _Json = False) -> None:
    """List the models that can be generated."""
    known: list[dict[str, Any]] = [
        {"name": name, "summary": model.summary, "options": model.options} for name, model in models.MODELS.items()
    ]
    if json:
        print_json(known)
    else:
        rows = [(m["name"], m["summary"], ", ".join(f"--{k} {v}" for k, v in m["options"].items())) for m in known]
        say(table(["name", "what", "options and defaults"], rows))


@app.command("make")
def make_model(
    name: Annotated[str, typer.Argument(help="A name from `ortmulti models list`.")],
    output: Annotated[Path, typer.Option("--output", "--out", help="The folder for its files.")] = Path("models"),
    layers: Annotated[int | None, typer.Option(help="Layers, for phi3-mini and encoder.")] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Width of the layers, for encoder: a multiple of 12; of 16 from 1024 on.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp16 or fp32; not for matmul.")] = None,
    megabytes: Annotated[int | None, typer.Option(help="Size of the weights, for matmul.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
    json: _Json = False,
) -> None:
    """Generate a model, unless the folder already has it, and print its path."""
    options: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "precision": precision,
        "megabytes": megabytes,
        "seed": seed,
    }
    description = models.describe(name, **options)  # wrong arguments are found before anything is said or made
    with bytes_written(f"making {name} in {output}") as progress:
        path = models.make(name, output, **options, progress=progress)
    if json:
        facts = {"path": str(path), "options": dict(description.options), "weight_bytes": description.weight_bytes}
        print_json({"name": name, **facts, "external_bytes": description.data_bytes})
    else:
        typer.echo(path)


DEMO_REPEAT = 2

# Large enough that the memory of sessions that share their weights differs from that of others.
DEMO_RUN_MODEL = "matmul:megabytes=64"
DEMO_RUN_SECONDS = 1.5
DEMO_RUN_WARM_SECONDS = 0.3

_ALL_LAYERS = 32
# Without a GPU a larger decoder shows nothing else, and takes minutes.
_CPU_LAYERS = 2
# A CPU session turns fp16 weights into fp32 ones, and for a while has both, and what it read.
_CPU_COPIES = 4
_GPU_COPIES = 1.5


def make_demo_models(folder: Path, device_sets: Sequence[tuple[str, ...]]) -> list[Path]:
    """Make resnet50 and phi3-mini, unless `folder` already has them.

    Args:
        folder: for the models.
        device_sets: the devices of sessions that must fit side by side.

    Returns:
        Their paths.
    """
    layers = choose_layers(folder, device_sets)
    with bytes_written(f"making resnet50 in {folder}") as progress:
        resnet50 = models.make("resnet50", folder, progress=progress)
    with bytes_written(f"making phi3-mini, {layers} of {_ALL_LAYERS} layers, in {folder}") as progress:
        return [resnet50, models.make("phi3-mini", folder, layers=layers, progress=progress)]


def choose_layers(folder: Path, device_sets: Sequence[tuple[str, ...]]) -> int:
    """Return the largest number of phi3-mini's layers, 1 to 32, whose sessions fit into half of the memory and disk.

    That is the GPUs' memory, the main memory (page cache and sessions on the CPU), and the disk unless it has the model
    already.
    """
    largest = max(device_sets, key=len)
    on_cpu = largest.count("cpu")
    sessions = Counter(device for device in largest if device != "cpu")
    gpus = {f"cuda:{gpu.index}": gpu.total_memory for gpu in _core.cuda_devices()} if sessions else {}
    memory = available_memory()
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    disk = shutil.disk_usage(place).free

    def fits(layers: int) -> bool:
        model = models.describe("phi3-mini", layers=layers)
        size = model.weight_bytes
        return (
            all(size * _GPU_COPIES * count <= gpus[device] / 2 for device, count in sessions.items())
            and size * (1 + _CPU_COPIES * on_cpu + sessions.total()) <= memory / 2
            and (size <= disk / 2 or model.find(folder) is not None)
        )

    most = _CPU_LAYERS if on_cpu else _ALL_LAYERS
    return next((layers for layers in range(most, 1, -1) if fits(layers)), 1)
