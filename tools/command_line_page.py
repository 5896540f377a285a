"""Write docs/reference/command-line.md from the command line itself.

python -m tools.command_line_page
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from ortmulti.cli.app import app

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/command-line.md"
INTRODUCTION = """\
# Command line

The command `ortmulti` needs the extra `cli`, and measuring commands need `bench`: `pip install ".[bench]"` in a clone.
Ctrl-C ends a measurement: what was measured is printed and written, marked as partial, and the exit status is 130.

<!-- Made by `python -m tools.command_line_page`. -->

## Options of several commands

The command's section has its default in parentheses.

"""


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its full name."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
    else:
        for part, inner in below.items():
            yield from commands(inner, f"{name} {part}")


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def default(parameter: Any) -> str:
    """The default, unless it is nothing or the help says it."""
    value = parameter.default
    if value in (None, False, (), []) or callable(value):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{getattr(value, 'value', value)}`"


def described(parameter: Any) -> str:
    text = one_line(getattr(parameter, "help", ""))
    return f"{text} Default: {default(parameter)}." if default(parameter) else text


def item(names: str, text: str) -> str:
    """Return a list item; of alternatives a list of its own."""
    parts = text.split("; ")
    return f"- `{names}`: {text}\n" if len(parts) < 3 else "\n    - ".join([f"- `{names}`:", *parts]) + "\n"


def names_of(parameter: Any) -> str:
    """How a command line has it: MODEL..., or --json FILE."""
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return name if parameter.nargs == 1 or name.endswith("...") else f"{name}..."
    names = ", ".join(parameter.opts + parameter.secondary_opts)
    return f"{names} {parameter.metavar}" if parameter.metavar else names


def options(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]


def shared(every: Sequence[Any]) -> dict[str, str]:
    """The options that several commands have with one text: their names, and the text that most have."""
    texts = Counter((names_of(p), p.help) for c in every for p in options(c) if p.param_type_name == "option")
    found: dict[str, str] = {}
    for (names, text), count in texts.most_common():
        if count > 1:
            found.setdefault(names, text)
    return dict(sorted(found.items()))


def section(name: str, command: Any, common: Mapping[str, str]) -> Iterator[str]:
    yield f"\n## {name}\n\n"
    paragraphs = (command.help or "").strip().split("\n\n")
    yield "\n\n".join(one_line(paragraph) for paragraph in paragraphs) + "\n"
    rows, also = [], []
    for parameter in options(command):
        names = names_of(parameter)
        if common.get(names) == getattr(parameter, "help", None):
            also.append(f"`{names}`" + (f" ({default(parameter)})" if default(parameter) else ""))
        else:
            rows.append(item(names, described(parameter)))
    if also:
        rows.append(f"- [Also](#options-of-several-commands) {', '.join(also)}\n")
    yield "\n" + "".join(rows) if rows else ""


def page() -> str:
    """The whole page."""
    every = dict(commands(typer.main.get_command(app), "ortmulti"))
    common = shared(list(every.values()))
    sections = (text for name, command in every.items() for text in section(name, command, common))
    return INTRODUCTION + "".join(item(names, one_line(text)) for names, text in common.items()) + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
