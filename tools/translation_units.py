#!/usr/bin/env python3
"""Print the .cpp files that clang-tidy must check after a change, one a line.

    tools/changed_files.sh | tools/translation_units.py

Reads the names of changed files. A source is printed if it changed, or if it includes a changed header of ours, also by
way of other headers. All sources are printed if clang-tidy's settings changed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
SETTINGS = {".clang-tidy", "tools/clang_tidy.sh"}


def includes(file: Path, files: set[Path]) -> set[Path]:
    """The files of ours that `file` includes: named from cpp/, or from its own folder."""
    named = INCLUDE.findall(file.read_text("utf-8"))
    return {path for name in named for path in (ROOT / "cpp" / name, file.parent / name) if path in files}


def units(changed: set[str]) -> list[str]:
    """The sources to check, by their names from the root."""
    folders = (ROOT / "cpp", ROOT / "tests/cpp")
    files = {file for folder in folders for suffix in ("cpp", "hpp") for file in folder.rglob(f"*.{suffix}")}
    affected = {file for file in files if SETTINGS & changed or str(file.relative_to(ROOT)) in changed}
    graph = {file: includes(file, files) for file in files}
    while more := {file for file in files - affected if graph[file] & affected}:
        affected |= more
    return sorted(str(file.relative_to(ROOT)) for file in affected if file.suffix == ".cpp")


if __name__ == "__main__":
    print(*units(set(sys.stdin.read().split("\n"))), sep="\n")
