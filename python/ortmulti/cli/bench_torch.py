"""`ortmulti bench run --torch`: ResNet-50 here and in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ortmulti.compare import pytorch, results
from ortmulti.compare.pytorch import tables

from .bench import end_with
from .output import print_json, stderr, stdout, steps


def compare_with_torch(
    device: str,
    precisions: str | None,
    batches: Sequence[int],
    places: str,
    compile_modes: str,
    rounds: int | None,
    folder: Path,
    timeout: float,
    json: Path | None,
    markdown: Path | None,
) -> None:
    """Compares, prints the tables, and writes what was asked for; the arguments are the command's."""
    possible = ("fp32",) if device == "cpu" else pytorch.PRECISIONS
    plan = pytorch.TorchPlan(
        device,
        precisions=possible if precisions is None else _names(precisions),
        batches=batches,
        places=_names(places),
        compile_modes=() if compile_modes == "none" else _names(compile_modes),
        rounds=pytorch.ROUNDS if rounds is None else rounds,
        timeout=timeout,
    )
    with steps() as step:
        document = pytorch.bench(plan, folder, step)
    if json is not None and str(json) == "-":
        print_json(document)
    else:
        console = stdout()
        for table in tables.torch_tables(document):
            console.print(table)
            console.print()
        console.print(tables.NOTES, markup=False)
    if json is not None and str(json) != "-":
        results.save(document, json)
        stderr().print(f"result: {json}", markup=False)
    if markdown is not None:
        text = tables.markdown(document)
        results.write_atomically(markdown, lambda file: file.write_text(text))
        stderr().print(f"table: {markdown}", markup=False)
    end_with(pytorch.failures(document))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))
