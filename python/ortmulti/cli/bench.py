"""`ortmulti bench`: measurements."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ortmulti import _core
from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench import models, strategies
from ortmulti.bench.create import Options, Plan, Progress, compare, failures, plots, tables
from ortmulti.bench.measure import devices, gil, results

from .models import DEMO_REPEAT, make_demo_models
from .options import DemoFolder, Details, Devices, JsonFile, Markdown, Plot, Timeout, one_device, options_by_owner
from .output import bytes_written, is_stdout, print_json, print_paths, show_tables, stderr, stdout, steps

app = typer.Typer(help="Measure how fast sessions are created and how fast pools answer.", no_args_is_help=True)

_Repeat = Annotated[
    int | None,
    typer.Option(help="How often each case is measured, each time in a new process (default: 5; with --demo 2)."),
]
INTERRUPTED = 130
"""Exit status after Ctrl-C."""


@app.command("create")
def create(
    model: Annotated[list[Path] | None, typer.Argument(help="One or more .onnx files.", show_default=False)] = None,
    device_text: Devices = "all",
    counts: Annotated[
        str | None,
        typer.Option(help="Numbers of sessions, such as 1,2,4, on the first devices of the list (default: 1 and all)."),
    ] = None,
    strategy_text: Annotated[
        str,
        typer.Option(
            "--strategies",
            help="Strategies to compare. sequential is plain onnxruntime in a loop: the speedup is over it.",
        ),
    ] = ",".join(strategies.names()),
    repeat: _Repeat = None,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold",
            help="Remove the model from the page cache before each measurement, and also time one read of its files.",
        ),
    ] = False,
    no_entry: Annotated[
        bool,
        typer.Option(
            "--no-entry",
            help="Measure the first load: empty the cache of optimized models before each measurement. Your own cache "
            "stays as it is.",
        ),
    ] = False,
    contexts_ready: Annotated[
        bool, typer.Option("--contexts-ready", help="Create the GPUs' CUDA contexts before each measured creation.")
    ] = False,
    second_model: Annotated[
        bool,
        typer.Option("--second-model", help="Load a small model before each measured creation."),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            help="CPU threads of each session (intra_op_num_threads) "
            "(default: the cores divided by the number of sessions; 1 on GPUs)."
        ),
    ] = None,
    provider_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[STRATEGY:]NAME=VALUE",
            help="An option of the CUDA provider, for all strategies or for one. Repeatable.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[STRATEGY:]NAME=VALUE",
            help="A session configuration entry, for all strategies or for one. Repeatable.",
        ),
    ] = None,
    timeout: Timeout = 1800.0,
    json: JsonFile = None,
    plot: Plot = None,
    markdown: Markdown = None,
    details: Details = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Generate resnet50 and phi3-mini in a size for this machine, and measure with them."
        ),
    ] = False,
    output: DemoFolder = Path("demo"),
) -> None:
    """Compare strategies that create sessions of a model on several devices.

    Without GPUs, N devices are N sessions on the CPU. On GPUs, the start of the driver alone is measured too: no
    strategy can be faster.
    """
    device_sets = devices.device_sets(
        devices.parse_devices(device_text), devices.parse_counts(counts) if counts is not None else None
    )
    paths = list(model or [])
    if demo:
        paths += make_demo_models(output / "models", device_sets)
        json, plot = json or output / "create.json", plot or output / "create.png"
        markdown = markdown or output / "create.md"
    if not paths:
        raise typer.BadParameter("no model: name at least one .onnx file, or give --demo")
    if contexts_ready and second_model:
        raise typer.BadParameter("--contexts-ready and --second-model exclude each other: give one of them")
    provider, config_entries = options_by_owner(provider_option), options_by_owner(config)
    plan = Plan(
        models=paths,
        device_sets=device_sets,
        strategies=[name.strip() for name in strategy_text.split(",")],
        repeat=repeat if repeat is not None else DEMO_REPEAT if demo else 5,
        cold=cold,
        entry=not no_entry,
        before="contexts" if contexts_ready else "model" if second_model else "nothing",
        intra_op_num_threads=threads,
        cores=_core.usable_cores(),
        options=Options(provider.pop("", {}), config_entries.pop("", {})),
        strategy_options={
            name: Options(provider.get(name, {}), config_entries.get(name, {}))
            for name in {**provider, **config_entries}
        },
        timeout=timeout,
    )
    check_plot(plot)
    with steps() as step:
        document = compare(plan, lambda progress: step(progress.done, progress.total, _text(progress)))
    make_tables = functools.partial(tables.creation_tables, details=details)
    show_tables(document, json, tables.headline(document), make_tables, tables.notes(document, details))
    as_markdown = functools.partial(tables.markdown, details=details)
    write_files(document, json, plot, markdown, table=as_markdown, save_plot=plots.save_creation_plot)
    end_with(failures(document), document["partial"])


@app.command("gil")
def bench_gil(
    model: Annotated[Path | None, typer.Argument(help="An .onnx file (default: a generated matmul of 512 MB).")] = None,
    onnxruntime: Annotated[bool, typer.Option("--onnxruntime/--no-onnxruntime", help="Measure onnxruntime.")] = True,
    ortmulti: Annotated[bool, typer.Option("--ortmulti/--no-ortmulti", help="Measure ortmulti.")] = True,
    device: Annotated[str, typer.Option(help="cpu or cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option(help="CPU threads of the session; 0 is ONNX Runtime's default.")] = 0,
    repeat: _Repeat = None,
    timeout: Timeout = 600.0,
    json: JsonFile = None,
) -> None:
    """Measure how long other Python threads stand still while a session is created.

    A thread sleeps for one millisecond, again and again. A wake-up that comes more than 5 ms late counts. The table has
    the sum of these delays and the largest one, as shares of the creation time.
    """
    checked = one_device(device)
    libraries = [name for name, wanted in (("onnxruntime", onnxruntime), ("ortmulti", ortmulti)) if wanted]
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        if model is None:
            with bytes_written("making matmul, 512 MB, in a temporary folder") as progress:
                model = models.make("matmul", folder, progress=progress)
        with steps() as step:
            document = gil.bench(
                model,
                libraries=libraries,
                device=checked,
                threads=threads,
                repeat=repeat if repeat is not None else 5,
                timeout=timeout,
                progress=step,
            )
    if is_stdout(json):
        print_json(document)
    else:
        stdout().print(tables.gil_table(document))
        write_files(document, json)
    end_with([f"{row['library']}: {error}" for row in document["rows"] for error in row["errors"]], document["partial"])


def _text(progress: Progress) -> str:
    if progress.case is None:
        return ""
    case = progress.case
    uncounted = "" if progress.counted else "uncounted: "
    return f"{uncounted}{case.model.stem}, {case.strategy} on {devices.describe(case.devices)}"


def check_plot(path: Path | None) -> None:
    """Check before minutes of measurements that a plot can be drawn.

    Raises:
        LibraryError: matplotlib is not installed.
        InvalidArgument: matplotlib does not write this format.
    """
    if path is not None:
        plots.new_figure(1, 1, path)


def write_files(
    document: dict[str, Any],
    json: Path | None,
    plot: Path | None = None,
    markdown: Path | None = None,
    *,
    table: Callable[[dict[str, Any]], str] | None = None,
    save_plot: Callable[[dict[str, Any], Path], None] | None = None,
) -> None:
    """Write the requested files and print their paths. A plot needs a measurement."""
    written = {}
    if json is not None and not is_stdout(json):
        results.save(document, json)
        written["result"] = json
    if markdown is not None and table is not None:
        text = table(document)
        write_atomically(markdown, lambda file: file.write_text(text))
        written["table"] = markdown
    if plot is not None and save_plot is not None and any(row["measured"] for row in document["rows"]):
        save_plot(document, plot)
        written["plot"] = plot
    print_paths(written)


def end_with(failed: Sequence[str], partial: str | None = None) -> None:
    """Print the failures, each reason once, and exit.

    Raises:
        Exit: status 130 if `partial` is "interrupted", otherwise 1 if anything failed or `partial` is set.
    """
    for text in dict.fromkeys(failed):
        stderr().print(f"failed: {' '.join(text.split())}", style="red", markup=False)
    if partial:
        stderr().print(f"partial: {partial}", style="red", markup=False)
    if failed or partial:
        raise typer.Exit(INTERRUPTED if partial == "interrupted" else 1)
