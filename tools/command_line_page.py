"""Write docs/reference/command-line.md from the command line itself.

python -m tools.command_line_page
"""

from __future__ import annotations

from collections.abc import Iterator
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


def described(parameter: Any) -> str:
    text = one_line(getattr(parameter, "help", ""))
    default = parameter.default
    if default in (None, False, (), []) or callable(default):
        return text
    return f"{text} Default: `{getattr(default, 'value', default)}`.".strip()


def item(names: str, text: str) -> str:
    """Return a list item; of alternatives a list of its own."""
    parts = text.split("; ")
    return f"- `{names}`: {text}\n" if len(parts) < 3 else "\n    - ".join([f"- `{names}`:", *parts]) + "\n"


def section(name: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    names = "".join(f" {p.name.upper()}{'...' if p.nargs != 1 else ''}" for p in arguments)
    yield f"\n## {name}\n\n```\n{name}{names} [OPTIONS]\n```\n\n"
    paragraphs = (command.help or "").strip().split("\n\n")
    yield "\n\n".join(one_line(paragraph) for paragraph in paragraphs) + "\n"
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        names = ", ".join(parameter.opts + parameter.secondary_opts)
        names += f" {parameter.metavar}" if parameter.metavar else ""
        rows.append(item(parameter.name.upper() if parameter in arguments else names, described(parameter)))
    yield "\n" + "".join(rows) if rows else ""


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    sections = (text for name, command in commands(root, "ortmulti") for text in section(name, command))
    return INTRODUCTION + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
