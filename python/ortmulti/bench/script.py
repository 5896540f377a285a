"""The command line of an experiment that is a script: its options are the experiment's fields."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any

from ortmulti.bench import models
from ortmulti.bench.experiment import Case, Experiment, Json, Step
from ortmulti.bench.measure import fresh_process, results
from ortmulti.bench.reports.tables import Sheet, label
from ortmulti.errors import Error

MODELS = Path("models")
"""The folder for generated models."""


def option(default: Any, text: str, parse: Callable[[str], Any] | None = None) -> Any:
    """Return a field of an experiment that is an option of its script.

    Args:
        default: its type is that of the option's value, unless `parse` is given.
        text: explains it.
        parse: makes the value from the text.
    """
    return field(default=default, metadata={"help": text, "parse": parse})


def names(text: str) -> tuple[str, ...]:
    """Parse a list such as "a,b"."""
    return tuple(filter(None, text.split(",")))


def numbers(text: str) -> tuple[int, ...]:
    """Parse a list such as "1,2"."""
    return tuple(map(int, names(text)))


class Script(Experiment[Case]):
    """An experiment that is a script: a dataclass of its options, see `option`.

    Attributes:
        timeout: seconds for a process of `fresh`.
        stack: closes what `prepare` has opened, after the last round.
    """

    models: Sequence[Path] = ()
    repeat: int = 1
    timeout: float = 600.0
    stack: ExitStack

    def run(self, progress: Step | None = None) -> dict[str, Any]:
        with ExitStack() as self.stack:
            return super().run(progress)

    def measure(self, case: Case, number: int) -> dict[str, Any]:  # noqa: ARG002
        return self.fresh(self.describe(case))

    def fresh(self, spec: Json, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Call the function `measure(spec)` of the script in a fresh process, see `fresh_process.run`.

        It gets the settings and the models, too.
        """
        models = [str(model) for model in self.models]
        given = {**self.settings(), "models": models, **spec}
        return fresh_process.run(module_of(type(self)), given, self.timeout, environment)


def module_of(kind: type) -> str:
    """Return the name of a class's module, by which another process can import it."""
    module = sys.modules[kind.__module__]
    spec = module.__spec__ if kind.__module__ == "__main__" else None
    return spec.name if spec else kind.__module__


def highest(values: Iterable[float]) -> float | None:
    """Return the largest value, as the summary of a `Column`; None if there are none."""
    return max(values, default=None)


def find_model(text: str) -> Path:
    """Return a model's path: an .onnx file, or a generated one as `ortmulti.bench.models.parse` names it."""
    if text.endswith(".onnx"):
        return Path(text)
    name, options = models.parse(text)
    return models.make(name, MODELS, **options)


def _add(parser: argparse.ArgumentParser, one: Field[Any]) -> None:
    text, parse, default = one.metadata["help"], one.metadata["parse"], one.default
    if one.name == "models":
        parser.add_argument("models", nargs="*", default=default, type=parse or str, help=text)
        return
    flag = f"--{one.name.replace('_', '-')}"
    if isinstance(default, bool):
        parser.add_argument(flag, action="store_true", help=text)
        return
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    kind = parse or (float if default is None else type(default))
    usual = f" (default: {shown})" if shown not in (None, "") else ""
    parser.add_argument(flag, default=default, type=kind, help=f"{text}{usual}".replace("%", "%%"))


def main(kind: type[Script[Any]], arguments: Sequence[str] | None = None) -> int:
    """Run an experiment with the options of a command line, print its table and its failures, and write its result.

    Args:
        kind: the experiment's class, a dataclass; the docstring of its module describes the script.
        arguments: default: those of the process.

    Returns:
        The exit status: 1 if a measurement or a limit of the experiment failed.
    """
    text = sys.modules[kind.__module__].__doc__
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in fields(kind):  # type: ignore[arg-type]
        if "help" in one.metadata:
            _add(parser, one)
    parser.add_argument("--json", type=Path, help="where to write the result")
    values = vars(parser.parse_args(arguments))
    path = values.pop("json")
    try:
        if "models" in values:
            values["models"] = [find_model(model) if isinstance(model, str) else model for model in values["models"]]
        experiment = kind(**values)
    except Error as error:
        parser.error(str(error))
    document = experiment.run(lambda done, total, what: print(f"{done} of {total} {what}", file=sys.stderr))
    document["command"] = ["python", "-m", module_of(kind), *document["command"][1:]]
    if kind.columns:
        labels = [label(key) for key in kind.labels(document["rows"][0])]
        print(Sheet(str(document["kind"]), labels, kind.columns, document["rows"]).markdown(True))
    else:
        print(*map(json.dumps, document["measurements"]), sep="\n")
    if path is not None:
        results.save(document, path)
    failed = list(dict.fromkeys(kind.failures(document)))
    for one in [*failed, *filter(None, [document["partial"]])]:
        print(f"failed: {one}")
    return int(bool(failed or document["partial"]))
