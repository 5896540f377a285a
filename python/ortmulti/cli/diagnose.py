"""`ortmulti diagnose`: where a model's start spends its time, and what would shorten it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ortmulti.bench import strategies
from ortmulti.bench.files import read_arrays
from ortmulti.bench.measure import devices as device_names
from ortmulti.bench.measure import results
from ortmulti.errors import Error, InvalidArgument

from .bench import INTERRUPTED, check_plot
from .options import (
    Batch,
    ConfigEntries,
    CustomOps,
    JsonFile,
    ProviderOptions,
    Sequences,
    Threads,
    Timeout,
    library_paths,
    name_values,
)
from .output import is_stdout, print_json, print_paths, stdout, steps


def diagnose_command(
    model: Annotated[
        Path,
        typer.Argument(help="An .onnx file, or a result of --json to report again.", show_default=False),
    ],
    device_text: Annotated[
        str,
        typer.Option(
            "--devices",
            help="all: every GPU, or else the CPU. Or a list: cpu, 0,1. cpu*2 is two sessions there.",
        ),
    ] = "all",
    ways: Annotated[
        str,
        typer.Option(
            help="Ways to create sessions; sequential is onnxruntime in a loop. Findings are about the first."
        ),
    ] = ",".join(strategies.names()),
    repeat: Annotated[
        int | None, typer.Option(help="Measurements of each way at most (default: 5; with --quick 1).")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which no repetition begins (default: 50; with --quick 20). Each way is measured at "
            "least once."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure each way and experiment once.")] = (False),
    inputs: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="An .npz file with an array for each input (default: random)."),
    ] = None,
    batch: Batch = 1,
    sequence: Sequences = 16,
    threads: Threads = None,
    custom_ops: CustomOps = None,
    provider_option: ProviderOptions = None,
    config: ConfigEntries = None,
    timeout: Timeout = 600.0,
    json: JsonFile = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report as one HTML page, which needs no network."),
    ] = None,
) -> None:
    """Find out where a model's start spends its time, and which change would help most.

    Each way to create sessions is traced in new processes, on the first device and on all devices. Experiments show
    what it waits for, and the change of the first finding is tried.
    """
    check_plot(html and html.with_suffix(".svg"))
    if model.suffix == ".json":
        from ortmulti.bench.diagnose.report import load_document

        document = load_document(model)
        try:
            _report(document, Path(), json, html)
        except Error:
            raise
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InvalidArgument(f"{model} is not a whole diagnosis ({reason}): diagnose the model again") from error
        return
    settings: dict[str, Any] = {
        "provider_options": name_values(provider_option),
        "config_entries": name_values(config),
        "custom_op_libraries": library_paths(custom_ops),
    }
    if threads is not None:
        if threads < 0:
            raise InvalidArgument(f"the number of threads is {threads}, but must not be negative")
        settings["intra_op_num_threads"] = threads
    from ortmulti.bench.diagnose.diagnosis import diagnose

    with steps() as step:
        document = diagnose(
            model,
            "all" if device_text.strip() == "all" else device_names.repeated(device_text),
            ways=[way.strip() for way in ways.split(",")],
            repeat=repeat,
            budget=budget,
            quick=quick,
            batch=batch,
            sequence=sequence,
            inputs=None if inputs is None else read_arrays(inputs),
            settings={name: value for name, value in settings.items() if value or name == "intra_op_num_threads"},
            timeout=timeout,
            progress=step,
        )
    _report(document, model, json, html)
    if document["partial"] == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if document["partial"]:
        raise typer.Exit(1)


def _report(document: dict[str, Any], model: Path, json: Path | None, html: Path | None) -> None:
    """Write the requested files first, since they last, and print the report."""
    from ortmulti.bench.diagnose.diagnosis import publishable

    written = {}
    if json is not None and not is_stdout(json):
        results.save(publishable(document, model), json)
        written["result"] = json
    if html is not None:
        from ortmulti.bench.diagnose.report.page import write_html

        write_html(document, html)
        written["page"] = html
    if is_stdout(json):
        print_json(publishable(document, model))
    else:
        from ortmulti.bench.diagnose.report.terminal import print_diagnosis

        print_diagnosis(document, stdout())
    print_paths(written)
