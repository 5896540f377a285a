"""Print what pyproject.toml asks for, one requirement a line: the build's, the package's, and those of the extras and
groups named.

python3 tools/requirements.py dev cpu | python3 -m pip install -r /dev/stdin

Unlike `pip install .[dev]` this builds nothing, so that an environment can be set up before the sources compile.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def expand(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """The requirements of an extra, with those of the extras that it names in `ortmulti[...]`."""
    found = []
    for requirement in extras[extra]:
        own = re.fullmatch(r"ortmulti\[([\w, ]+)\]", requirement)
        found += [r for name in own[1].split(",") for r in expand(name.strip(), extras)] if own else [requirement]
    return found


def main(wanted: list[str]) -> None:
    """Print the requirements of the extras and dependency groups in `wanted`."""
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())
    named = project["project"]["optional-dependencies"] | project["dependency-groups"]
    found = project["build-system"]["requires"] + project["project"]["dependencies"]
    for name in wanted:
        found += expand(name, named)
    print(*dict.fromkeys(found), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
