"""From what a user writes to the models of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ortmulti.errors import InvalidArgument, NoSuchFile
from ortmulti.tools import models


def parse_model(text: str) -> tuple[str, dict[str, Any]]:
    """A generated model's name and options: "resnet50", "phi3-mini:layers=2", "resnet50:precision=fp16".

    Raises:
        InvalidArgument: there is no such model or option.
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InvalidArgument(f"{text!r}: {part!r} is not of the form NAME=VALUE")
        options[key] = int(value) if value.isdecimal() else value
    try:
        models.describe(name, **options)
    except TypeError:
        raise InvalidArgument(f"{text!r}: no model takes the option {', '.join(options)}") from None
    return name, options


def make_models(
    texts: Sequence[str],
    folder: Path,
    progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]],
) -> list[Path]:
    """The models' paths; those that are generated are made unless `folder` has them.

    Args:
        texts: paths of .onnx files, and names of generated models as `parse_model` takes them.
        folder: for the generated ones.
        progress: given a text, shows the bytes written of one model.

    Raises:
        InvalidArgument: a name that is neither a file nor a model.
        NoSuchFile: an .onnx file that does not exist.
    """
    named: list[Path | tuple[str, dict[str, Any]]] = []
    for text in texts:  # all of them before any is made
        path = Path(text)
        if path.suffix == ".onnx" and not path.is_file():
            raise NoSuchFile(f"model {path} does not exist")
        named.append(path if path.is_file() else parse_model(text))
    paths = []
    for one in named:
        if isinstance(one, Path):
            paths.append(one)
            continue
        name, options = one
        with progress(f"making {name} in {folder}") as written:
            paths.append(models.make(name, folder, **options, progress=written))
    return list(dict.fromkeys(paths))
