"""`ortmulti bench run --torch`: ResNet-50 here and in PyTorch."""

from __future__ import annotations

from pathlib import Path

from ortmulti.compare import pytorch, results
from ortmulti.compare.pytorch import tables

from .bench import end_with
from .output import print_json, stderr, stdout, steps


def compare_with_torch(plan: pytorch.TorchPlan, folder: Path, json: Path | None, markdown: Path | None) -> None:
    """Compares, prints the tables, and writes what was asked for; `folder` is for the models."""
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
