"""Options that several commands have, and the forms of their values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import ortmulti
from ortmulti.bench import strategies
from ortmulti.bench.measure import devices
from ortmulti.errors import InvalidArgument, NoSuchFile

Model = Annotated[Path, typer.Argument(help="An .onnx file.", show_default=False)]


def path_or_url(text: str) -> Any:
    """Return a path, or the URL of an object as it is: a path would lose a slash."""
    return text if "://" in text else Path(text)


ModelOrUrl = Annotated[
    Path,
    typer.Argument(
        help="An .onnx file, or its URL: s3://, gs://, az:// or https://.",
        parser=path_or_url,
        metavar="MODEL",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - prints it."),
]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the result, as .png, .svg or .pdf.")]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as Markdown.")]
Details = Annotated[bool, typer.Option("--details", help="Show all columns.")]

Devices = Annotated[
    str,
    typer.Option(
        "--devices",
        help="all: every GPU, or else two sessions on the CPU. Or a list: cpu, 0,1. cpu*4 is four sessions there.",
    ),
]
OneDevice = Annotated[
    str, typer.Option("--devices", help="One device, such as 0 or cpu. all: the first GPU, or else the CPU.")
]
Batch = Annotated[int, typer.Option(help="Size of the dynamic batch dimension of random inputs.")]
Sequences = Annotated[int, typer.Option(help="Size of other dynamic dimensions of random inputs.")]
ProviderOptions = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the CUDA provider. Repeatable.")
]
ConfigEntries = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A session configuration entry. Repeatable.")
]
CustomOps = Annotated[
    list[Path] | None,
    typer.Option("--custom-ops", metavar="FILE", help="A library of custom operators, whose code runs. Repeatable."),
]
Threads = Annotated[
    int | None,
    typer.Option(help="CPU threads of each session (default: the cores divided by the sessions; 1 on GPUs)."),
]
Timeout = Annotated[float, typer.Option(help="Seconds after which a measurement fails.")]
Seconds = Annotated[float, typer.Option(help="Seconds of a measurement.")]
WarmSeconds = Annotated[float, typer.Option(help="Seconds of warming up before it.")]


def one_device(text: str) -> str:
    """Return the device that a value of `OneDevice` names.

    Raises:
        InvalidArgument: It names several.
    """
    found = devices.parse_devices(text)
    if text.strip() != "all" and len(found) != 1:
        raise InvalidArgument(f"one device is measured at a time, not {devices.describe(found)}")
    return found[0]


def library_paths(given: Sequence[Path] | None) -> list[str]:
    """Return the paths of libraries of custom operators, as `register_custom_ops_library` takes them.

    Raises:
        NoSuchFile: One does not exist.
    """
    for library in given or ():
        if not library.is_file():
            raise NoSuchFile(f"the library of custom operators '{library}' does not exist: check the path")
    return [str(library.absolute()) for library in given or ()]


def session_options(custom_ops: Sequence[Path] | None) -> ortmulti.SessionOptions:
    """Return options with these libraries of custom operators."""
    options = ortmulti.SessionOptions()
    for library in library_paths(custom_ops):
        options.register_custom_ops_library(library)
    return options


def device_names(given: Any) -> Any:
    """Return the devices of a text such as 0,1 as a list; other values, such as a TOML file's list, as they are."""
    return given.split(",") if isinstance(given, str) and "," in given else given


def options_by_owner(texts: Sequence[str] | None, owners: bool = True) -> dict[str, dict[str, str]]:
    """Return the options by strategy; under "" those for all. Without `owners` there are no strategies' own."""
    options: dict[str, dict[str, str]] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        strategy, colon, own_name = name.partition(":") if owners else ("", "", "")
        if colon:
            strategies.check_name(strategy)
            name = own_name
        if not name or not equals:
            form = "NAME=VALUE or STRATEGY:NAME=VALUE" if owners else "NAME=VALUE"
            raise InvalidArgument(f"option {text!r} is not of the form {form}")
        options.setdefault(strategy if colon else "", {})[name] = value
    return options


def name_values(texts: Sequence[str] | None) -> dict[str, str]:
    """Return the options of texts NAME=VALUE."""
    return options_by_owner(texts, owners=False).get("", {})
