"""`ortmulti models`: models with random weights, for measuring."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ortmulti.tools import models

from .output import bytes_written, print_json, stdout

app = typer.Typer(help="Make models of known shape and size, with seeded random weights.", no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_models(json: _Json = False) -> None:
    """List the models that can be made."""
    if json:
        listed = [
            {"name": model.name, "summary": model.summary, "options": dict(model.options)}
            for model in models.MODELS.values()
        ]
        print_json(listed)
        return
    table = Table("name", "what", "options and defaults", box=None, pad_edge=False)
    for model in models.MODELS.values():
        options = ", ".join(f"--{key} {value}" for key, value in model.options.items())
        table.add_row(model.name, model.summary, options)
    stdout().print(table)


@app.command("make")
def make_model(
    name: Annotated[str, typer.Argument(help="One of those that `ortmulti models list` shows.")],
    output: Annotated[Path, typer.Option("--output", "--out", help="The folder for its files.")] = Path("models"),
    layers: Annotated[int | None, typer.Option(help="Decoder layers, for phi3-mini.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp16 or fp32, for phi3-mini and resnet50.")] = None,
    megabytes: Annotated[int | None, typer.Option(help="Size of the weights, for matmul.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
    json: _Json = False,
) -> None:
    """Make a model, unless the folder already has it, and print its path."""
    with bytes_written(f"making {name} in {output}") as progress:
        path = models.make(
            name, output, layers=layers, precision=precision, megabytes=megabytes, seed=seed, progress=progress
        )
    if json:
        description = models.describe(name, layers=layers, precision=precision, megabytes=megabytes, seed=seed)
        facts = {"path": str(path), "options": dict(description.options), "weight_bytes": description.weight_bytes}
        print_json({"name": name, **facts, "external_bytes": description.data_bytes})
    else:
        typer.echo(path)
