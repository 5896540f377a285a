"""The command line, `ortmulti`. Needs typer and rich: ``pip install "ortmulti[cli]"``."""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main() -> None:
    """The entry point of the `ortmulti` command: runs it with the process's arguments, and exits."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        sys.exit(f'ortmulti: the command line needs {missing}: pip install "ortmulti[cli]"')
    run()
