"""Compare a tag with the version in CMakeLists.txt, which the package and its wheels have too; print its notes.

python3 tools/check_version.py v0.1.0 >notes.md

Exit status 1 where they differ, where CHANGELOG.md does not begin with that version and a date, or has nothing below.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version(root: Path = ROOT) -> str:
    """The version that CMakeLists.txt names."""
    found = re.search(r"project\(ortmulti VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text("utf-8"))
    if found is None:
        raise ValueError("CMakeLists.txt names no version")
    return found[1]


def main(tag: str, root: Path = ROOT) -> int:
    expected = version(root)
    if tag != f"v{expected}":
        print(f"the tag is {tag}, and CMakeLists.txt says {expected}", file=sys.stderr)
        return 1
    _, heading, notes = [*re.split(r"(?m)^## (.+)$", (root / "CHANGELOG.md").read_text("utf-8")), "", ""][:3]
    if not re.fullmatch(rf"{re.escape(expected)} \(\d{{4}}-\d\d-\d\d\)", heading):
        print(f"CHANGELOG.md begins with {heading!r}, not with '{expected} (DATE)'", file=sys.stderr)
        return 1
    if not notes.strip():
        print(f"CHANGELOG.md says nothing of {heading}", file=sys.stderr)
        return 1
    print(notes.strip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
