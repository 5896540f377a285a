"""`ortmulti bench`: measurements."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench import gil, models, strategies
from ortmulti.bench.create.plan import Plan
from ortmulti.bench.experiment import Experiment
from ortmulti.bench.measure import devices, results
from ortmulti.bench.reports import plots

from .options import Details, Devices, JsonFile, Markdown, Plot, Threads, Timeout, one_device, options_by_owner
from .output import bytes_written, is_stdout, print_json, print_paths, stderr, stdout, steps

app = typer.Typer(help="Measure how fast sessions are created and how fast pools answer.", no_args_is_help=True)

_Repeat = Annotated[int, typer.Option(help="Measurements of each case, each in a new process.")]
INTERRUPTED = 130
"""Exit status after Ctrl-C."""


@app.command("create")
def create(
    model: Annotated[
        list[str],
        typer.Argument(help=".onnx files, or their URLs in stores.", show_default=False),
    ],
    device_text: Devices = "all",
    counts: Annotated[
        str | None,
        typer.Option(help="Numbers of sessions, such as 1,2,4 (default: 1 and all devices)."),
    ] = None,
    strategy_text: Annotated[
        str,
        typer.Option(
            "--strategies",
            help="Strategies to compare; sequential, onnxruntime in a loop, is what the speedup is over.",
        ),
    ] = ",".join(strategies.names()),
    repeat: _Repeat = 5,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold",
            help="Remove the model from the page cache before each, and time one read of its files.",
        ),
    ] = False,
    no_entry: Annotated[
        bool,
        typer.Option(
            "--no-entry",
            help="Measure the first load, with an empty cache of optimized models. Your own stays as it is.",
        ),
    ] = False,
    contexts_ready: Annotated[
        bool, typer.Option("--contexts-ready", help="Create the CUDA contexts before each.")
    ] = False,
    second_model: Annotated[
        bool,
        typer.Option("--second-model", help="Load a small model before each."),
    ] = False,
    threads: Threads = None,
    provider_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[STRATEGY:]NAME=VALUE",
            help="An option of the CUDA provider, of all strategies or one. Repeatable.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[STRATEGY:]NAME=VALUE",
            help="A session configuration entry, of all strategies or one. Repeatable.",
        ),
    ] = None,
    timeout: Timeout = 1800.0,
    json: JsonFile = None,
    plot: Plot = None,
    markdown: Markdown = None,
    details: Details = False,
) -> None:
    """Compare strategies that create sessions of a model on several devices.

    On GPUs the start of the driver alone is measured too: no strategy can be faster.
    """
    device_sets = devices.device_sets(
        devices.parse_devices(device_text), devices.parse_counts(counts) if counts is not None else None
    )
    urls = [text for text in model if "://" in text]
    paths = [Path(text) for text in model if "://" not in text]
    if contexts_ready and second_model:
        raise typer.BadParameter("--contexts-ready and --second-model exclude each other: give one of them")
    plan = Plan(
        models=[*paths, *map(Path, urls)],
        device_sets=device_sets,
        strategies=[name.strip() for name in strategy_text.split(",")],
        repeat=repeat,
        cold=cold,
        entry=not no_entry,
        before="contexts" if contexts_ready else "model" if second_model else "nothing",
        intra_op_num_threads=threads,
        options={
            "provider_options": options_by_owner(provider_option),
            "config_entries": options_by_owner(config),
        },
        timeout=timeout,
    )
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        for number, url in enumerate(urls):
            from ortmulti.bench.measure.download import download

            own = Path(folder, str(number))
            own.mkdir()
            plan.urls[download(url, own)] = url
        plan.models = [*paths, *plan.urls]
        conduct(plan, json, plot, markdown, details)


@app.command("gil")
def bench_gil(
    model: Annotated[Path | None, typer.Argument(help="An .onnx file (default: a generated matmul of 512 MB).")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option(help="CPU threads of the session; 0 is ONNX Runtime's default.")] = 0,
    repeat: _Repeat = 5,
    timeout: Timeout = 600.0,
    json: JsonFile = None,
) -> None:
    """Measure how long other Python threads stand still while a session is created.

    A thread sleeps for one millisecond, again and again. The table has the sum of the delays above 5 ms and the largest
    one, as shares of the creation time.
    """
    checked = one_device(device)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        if model is None:
            with bytes_written("making matmul, 512 MB, in a temporary folder") as progress:
                model = models.make("matmul", folder, progress=progress)
        conduct(gil.Gil([model], checked, threads, repeat, timeout), json)


def check_plot(path: Path | None) -> None:
    """Check before minutes of measurements that a plot can be drawn.

    Raises:
        LibraryError: matplotlib is not installed.
        InvalidArgument: matplotlib does not write this format.
    """
    if path is not None:
        plots.new_figure(1, 1, path)


def conduct(
    experiment: Experiment[Any],
    json: Path | None,
    plot: Path | None = None,
    markdown: Path | None = None,
    details: bool = False,
) -> None:
    """Run an experiment, print its tables (or the result as JSON if `json` is "-"), and write the files.

    Then the failures are printed, each reason once.

    Raises:
        Exit: status 130 after Ctrl-C, otherwise 1 if a measurement failed.
    """
    check_plot(plot)
    with steps() as step:
        document = experiment.run(step)
    report = experiment.report
    written = {}
    if is_stdout(json):
        print_json(document)
    else:
        console = stdout()
        console.print(report.headline(document), style="bold", markup=False, soft_wrap=True)
        console.print()
        for table in report.tables(document, console, details):
            console.print(table)
            console.print()
        console.print(report.notes(document, details), markup=False)
        if json is not None:
            results.save(document, json)
            written["result"] = json
    if markdown is not None:
        text = report.markdown(document, details)
        write_atomically(markdown, lambda file: file.write_text(text))
        written["table"] = markdown
    if plot is not None and report.save_plot and any(row["measured"] for row in document["rows"]):
        report.save_plot(document, plot)
        written["plot"] = plot
    print_paths(written)
    failed, partial = experiment.failures(document), document["partial"]
    for text in dict.fromkeys(failed):
        stderr().print(f"failed: {' '.join(text.split())}", style="red", markup=False)
    if partial:
        stderr().print(f"partial: {partial}", style="red", markup=False)
    if failed or partial:
        raise typer.Exit(INTERRUPTED if partial else 1)
