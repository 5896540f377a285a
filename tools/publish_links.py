"""Add the repository's address to README.md and pyproject.toml, for the page of the package registry.

python tools/publish_links.py OWNER/NAME v0.1.0

Relative links of the README become absolute ones to this tag, and `[project.urls]` is added. Run it in a checkout that
is only built from: the workflow of a release does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(repository: str, tag: str, root: Path = ROOT) -> None:
    """Rewrite both files."""
    home = f"https://github.com/{repository}"
    readme = root / "README.md"
    text = re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({home}/blob/{tag}/\1)", readme.read_text("utf-8"))
    raw = f"https://raw.githubusercontent.com/{repository}/{tag}"
    text = re.sub(r'(src|srcset)="(?!https?:)([^"]+)"', rf'\1="{raw}/\2"', text)
    readme.write_text(text, "utf-8")
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
