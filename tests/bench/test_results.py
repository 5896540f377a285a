"""The results of the benchmarks, and the scripts that made them, are those that the pages name."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results"
PAGES = [*ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"]
FINDINGS = ROOT / "docs" / "inside" / "findings.md"

if not FOLDER.is_dir():
    pytest.skip("needs the results", allow_module_level=True)

RESULTS = {name: file.stem for file in FOLDER.glob("*.json") for name in json.loads(file.read_text("utf-8"))["results"]}
TEXTS = {page: page.read_text("utf-8") for page in PAGES}
NAME = r"`(?:R/)?((?!onnxruntime)[\w*-]+-(?:\*|\d\.\d(?:\*|\d\.\d)-[\w*-]+|\dx[\w*-]+))(?:\.json)?`"
NAMED = {name for text in TEXTS.values() for name in re.findall(NAME, text)}


def test_every_result_that_a_page_names_exists() -> None:
    assert len(NAMED) > 60
    assert {name for name in NAMED if not fnmatch.filter(RESULTS, name)} == set()
    files = {name for text in TEXTS.values() for name in re.findall(r"benchmarks/results/([a-z-]+\.json)", text)}
    assert {name for name in files if not (FOLDER / name).exists()} == set()


def test_every_result_is_named_by_a_page() -> None:
    assert {name for name in RESULTS if not any(fnmatch.fnmatch(name, named) for named in NAMED)} == set()


def test_every_result_names_a_machine_of_its_file() -> None:
    for file in FOLDER.glob("*.json"):
        document = json.loads(file.read_text("utf-8"))
        for name, result in document["results"].items():
            assert result.get("machine", "1") in document["machines"] or name.startswith("joined-nodes"), name


def test_results_are_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 300_000


def test_every_script_is_in_the_readme_and_every_named_one_exists() -> None:
    scripts = {path.stem for path in FOLDER.parent.glob("*.py")}
    readme = (FOLDER.parent / "README.md").read_text("utf-8")
    assert {name for name in scripts if not re.search(rf"`(?:benchmarks\.)?{name}\b", readme)} == set()
    texts = [text for page, text in TEXTS.items() if page != FINDINGS]
    named = {name for text in texts for name in re.findall(r"(?:benchmarks\.|benchmarks/)([a-z_]+)(?:\.py|[ `])", text)}
    assert named <= scripts | {"README"}, named - scripts
