#!/usr/bin/env python3
"""Print the .cpp files that clang-tidy must check after a change, one a line.

    tools/changed_files.sh | tools/translation_units.py
    tools/translation_units.py --keys BUILD

Reads the names of changed files. A source is printed if it changed, or if it includes a changed header of ours, also by
way of other headers. All sources are printed if clang-tidy's settings changed.

With --keys it prints each source that BUILD compiles, and a key of all that can change clang-tidy's result: the
source, the headers of ours that it includes, how it is compiled, the settings, and other libraries' releases.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
SETTINGS = {".clang-tidy", "tests/cpp/.clang-tidy", "tools/clang_tidy.sh"}
RELEASES = ("onnxruntime_c_api.h", "cuda.h", "pybind11/detail/common.h", "gtest/gtest.h")  # these name theirs


def includes(file: Path, files: set[Path]) -> set[Path]:
    """The files of ours that `file` includes: named from cpp/, or from its own folder."""
    named = INCLUDE.findall(file.read_text("utf-8"))
    return {path for name in named for path in (ROOT / "cpp" / name, file.parent / name) if path in files}


def graph_of_includes() -> dict[Path, set[Path]]:
    """Each file of ours, with the ones that it includes itself."""
    folders = (ROOT / "cpp", ROOT / "tests/cpp")
    files = {file for folder in folders for suffix in ("cpp", "hpp") for file in folder.rglob(f"*.{suffix}")}
    return {file: includes(file, files) for file in files}


def keys(build: Path) -> dict[str, str]:
    """A key of each source, by its name from the root."""
    graph = graph_of_includes()
    settings = b"".join((ROOT / name).read_bytes() for name in (*sorted(SETTINGS), "tools/constraints.txt"))
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text("utf-8")):
        source = Path(entry["file"])
        if source not in graph:
            continue
        needed, more = {source}, {source}
        while more := {included for file in more for included in graph[file]} - needed:
            needed |= more
        key = hashlib.sha256(settings + entry["command"].replace(str(ROOT), "").encode())
        for folder in re.findall(r"-(?:isystem|I) ?(\S+)", entry["command"]):
            for header in (Path(folder) / name for name in RELEASES):
                key.update(header.read_bytes() if header.is_file() else b"")
        for file in sorted(needed):
            key.update(f"\n{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
        found[str(source.relative_to(ROOT))] = key.hexdigest()[:32]
    return found


def units(changed: set[str]) -> list[str]:
    """The sources to check, by their names from the root."""
    graph = graph_of_includes()
    affected = {file for file in graph if SETTINGS & changed or str(file.relative_to(ROOT)) in changed}
    while more := {file for file in graph.keys() - affected if graph[file] & affected}:
        affected |= more
    return sorted(str(file.relative_to(ROOT)) for file in affected if file.suffix == ".cpp")


if __name__ == "__main__" and sys.argv[1:2] == ["--keys"]:
    for name, key in sorted(keys(Path(sys.argv[2])).items()):
        print(name, key)
elif __name__ == "__main__":
    print(*units(set(sys.stdin.read().split("\n"))), sep="\n")
