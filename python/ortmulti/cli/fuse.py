"""`ortmulti fuse`: a faster form of an encoder, as a model file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

import ortmulti

from .options import AsJson, CustomOps, session_options
from .output import print_json, say, table, working


def fuse_command(
    model: Annotated[Path, typer.Argument(help="An .onnx file, or the folder of an exported model of texts.")],
    to: Annotated[Path, typer.Argument(help="The new file or folder.")],
    device: Annotated[
        str | None,
        typer.Option(help="Where it is compared and timed: cpu, cuda or cuda:N (default: a GPU, or else the CPU)."),
    ] = None,
    precision: Annotated[
        Literal["fp32", "fp16"],
        typer.Option(help="fp16: compute with half precision. Inputs and outputs keep their types."),
    ] = "fp32",
    custom_ops: CustomOps = None,
    as_json: AsJson = False,
) -> None:
    """Write a faster form of an encoder: its attention becomes operators of ONNX Runtime's.

    It is kept only if it is faster on the device and its outputs are the model's, but for rounding. A folder's model
    also pools by itself, and leaves out padding on GPUs.
    """
    with working(f"fusing {model}"):
        make = ortmulti.text.fuse if model.is_dir() else ortmulti.fuse
        result = make(model, to, device, precision=precision, options=session_options(custom_ops))
    if as_json:
        print_json(dataclasses.asdict(result))
        return
    operators = ", ".join(f"{count} {name}" for name, count in sorted(result.fused.items()))
    say(
        f"made in {result.seconds:.2f} s on {result.device}: {escape(result.path)}",
        f"{result.nodes[0]} nodes became {result.nodes[1]}, with {operators or 'no operators of its own'}",
        f"its outputs differ by {result.difference:.2g} of their largest value at most; {result.tolerance:.2g} is "
        "rounding",
    )
    rows = [
        (
            f"{run.rows} x {run.tokens}" + f" ({run.real:,} real)" * (run.real < run.rows * run.tokens),
            f"{run.before * 1e3:.3g}",
            f"{run.after * 1e3:.3g}",
            f"{run.before / run.after:.2f}",
        )
        for run in result.runs
    ]
    say(table(["rows x tokens", "ms before", "ms after", "times as fast"], rows))
