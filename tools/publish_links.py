"""Add the repository's address to README.md, CHANGELOG.md and pyproject.toml, for the pages of a release.

python tools/publish_links.py OWNER/NAME v0.1.0

Relative links become absolute ones to this tag, and `[project.urls]` is added. Run it in a checkout that
is only built from: the workflow of a release does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(repository: str, tag: str, root: Path = ROOT) -> None:
    """Rewrite the files."""
    home = f"https://github.com/{repository}"
    raw = f"https://raw.githubusercontent.com/{repository}/{tag}"
    for page in (root / "README.md", root / "CHANGELOG.md"):
        text = re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({home}/blob/{tag}/\1)", page.read_text("utf-8"))
        page.write_text(re.sub(r'(src|srcset)="(?!https?:)([^"]+)"', rf'\1="{raw}/\2"', text), "utf-8")
    project = root / "pyproject.toml"
    urls = {
        "Homepage": home,
        "Documentation": f"{home}/tree/{tag}/docs",
        "Changelog": f"{home}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    table = "[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    content = project.read_text("utf-8")
    project.write_text(content.replace("[project.scripts]\n", f"{table}\n[project.scripts]\n", 1), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
