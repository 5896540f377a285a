"""The documentation site is built strictly: links, anchors and inclusions are right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytest.importorskip("mkdocstrings")

NAV = re.findall(r"([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)


def test_every_page_is_in_the_navigation_and_built_without_a_warning(tmp_path: Path) -> None:
    if not (ROOT / "python").is_dir():
        pytest.skip("needs the sources")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert sorted(NAV) == sorted(str(p.relative_to(ROOT / "docs").with_suffix("")) for p in ROOT.glob("docs/**/*.md"))
    assert all((tmp_path / f"{page}.html").is_file() for page in NAV)
    index = (tmp_path / "llms.txt").read_text("utf-8")
    entries = re.findall(r"(?m)^- \[.+?\]\((\S+)\): (.+)", index)
    assert sorted(url for url, _ in entries) == sorted(f"{page}.html" for page in NAV)
    assert all(sentence[0] not in "|<#-" and len(sentence) < 250 for _, sentence in entries)
    assert "## How to\n" in index
