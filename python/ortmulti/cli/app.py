"""The commands, and their exit after an error."""

from __future__ import annotations

import inspect
import sys
import traceback
from typing import Annotated

import typer
from rich.markup import escape

import ortmulti
from ortmulti import checks
from ortmulti.errors import Error

from . import bench, models
from .bench_batching import bench_batching
from .bench_repository import bench_repository
from .bench_run import bench_run
from .bench_sleep import bench_sleep
from .devices import devices_command
from .diagnose import diagnose_command
from .fuse import fuse_command
from .hold import hold_command
from .inspect import inspect_command, run_command
from .optimize import optimize_command
from .output import print_log, stderr
from .serve import serve_command
from .tune import tune_command

app = typer.Typer(
    name="ortmulti",
    help="Load and serve ONNX models on every GPU of a host, or on the CPU, from one Python process.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("devices")(devices_command)
app.command("diagnose")(diagnose_command)
app.command("inspect")(inspect_command)
app.command("run")(run_command)
app.command("optimize")(optimize_command)
app.command("fuse")(fuse_command)
app.command("serve")(serve_command)
app.command("hold")(hold_command)
app.command("tune")(tune_command)
bench.app.command("batching")(bench_batching)
bench.app.command("repository")(bench_repository)
bench.app.command("run")(bench_run)
bench.app.command("sleep")(bench_sleep)
app.add_typer(bench.app, name="bench")
app.add_typer(models.app, name="models")


def _join_lines(of: typer.Typer) -> None:
    """Let the terminal break the lines of --help: typer keeps those of the docstrings."""
    for command in of.registered_commands:
        paragraphs = inspect.cleandoc(command.callback.__doc__ or "" if command.callback else "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for each in (app, bench.app, models.app):
    _join_lines(each)

_debug = False


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ortmulti {ortmulti.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[  # noqa: ARG001  (its callback has done the work)
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    global _debug
    _debug = checks.whole_tracebacks = debug


def run() -> None:
    """Run the command of the process's arguments and exit with 0, 1 (a failure) or 2 (wrong arguments)."""
    print_log()
    try:
        app()
    except Exception as error:
        if isinstance(error, Error) and not _debug:
            # The first line says what to do; ONNX Runtime's own text follows it.
            first, _, rest = str(error).partition("\n")
            stderr().print(f"[bold red]error:[/bold red] [red]{escape(' '.join(first.split()))}[/red]")
            if rest.split():
                stderr().print(f"[dim]{escape(' '.join(rest.split()))}[/dim]")
        else:
            stderr().print(traceback.format_exc(), markup=False)
        sys.exit(1)
