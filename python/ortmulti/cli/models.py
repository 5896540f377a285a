"""`ortmulti models`: models with random weights, for measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ortmulti.bench import models
from ortmulti.cli.output import bytes_written, say, table

app = typer.Typer(help="Make models of known shape and size, with seeded random weights.", no_args_is_help=True)


@app.command("list")
def list_models() -> None:
    """List the models that can be generated."""
    rows = [
        (name, model.summary, ", ".join(f"--{option} {value}" for option, value in model.options.items()))
        for name, model in models.MODELS.items()
    ]
    say(table(["name", "what", "options and defaults"], rows))


@app.command("make")
def make_model(
    name: Annotated[str, typer.Argument(help="A name from `ortmulti models list`.")],
    output: Annotated[Path, typer.Option("--output", "--out", help="The folder for its files.")] = Path("models"),
    layers: Annotated[int | None, typer.Option(help="Layers, for phi3-mini and encoder.")] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Width, for encoder: a multiple of 12, of 16 from 1024 on.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp16 or fp32; not for matmul.")] = None,
    megabytes: Annotated[int | None, typer.Option(help="Size of the weights, for matmul.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
) -> None:
    """Generate a model, unless the folder already has it, and print its path."""
    options: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "precision": precision,
        "megabytes": megabytes,
        "seed": seed,
    }
    models.describe(name, **options)  # wrong arguments are found before anything is said or made
    with bytes_written(f"making {name} in {output}") as progress:
        path = models.make(name, output, **options, progress=progress)
    typer.echo(path)
