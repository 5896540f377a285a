"""What the documents show works, what they list is complete, and they can be read."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import ortmulti
from ortmulti import errors
from ortmulti.serve.limits import Limits
from ortmulti.serve.service import Service
from ortmulti.serve.text_models import ServedTexts
from tests.support import onnx_models, pools
from tests.support.processes import ROOT, run_child

PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])
MODULES = sorted(ROOT.glob("python/ortmulti/**/*.py"))
WITH_PROGRAMS = (
    "README.md",
    "docs/loading.md",
    "docs/memory.md",
    "docs/pool.md",
    "docs/reference/libraries.md",
    *(f"docs/how-to/{page}.md" for page in ("batching", "cuda-graphs", "runs-at-a-time", "slow-start", "threads")),
)
PROGRAM = r"(?ms)^```python\n(?!--8<--)(.*?)^```"  # but for those of examples/, which have tests of their own
SNIPPETS = [
    pytest.param(code, id=f"{document}-{number}")
    for document in WITH_PROGRAMS
    for number, code in enumerate(re.findall(PROGRAM, (ROOT / document).read_text("utf-8")), 1)
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_every_snippet_runs(code: str, tmp_path: Path) -> None:
    onnx_models.write_external(tmp_path)
    child = run_child(
        "import os, sys; os.chdir(sys.argv[1]); exec(sys.argv[2])",
        tmp_path,
        code,
        environment={"ORTMULTI_CACHE": str(tmp_path / "cache")},
    )
    assert (child.returncode, child.stderr) == (0, "")


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page's paragraphs and list items; without code, tables and headings."""
    page = re.sub(r"(?ms)^```.*?^```|<!--.*?-->|<picture>.*?</picture>|^\[.*?\]:.*?$", "", page)
    paragraph: list[str] = []
    for line in [*map(str.strip, page.splitlines()), ""]:
        item = re.match(r"(?:[-*]|\d+\.) +(.*)", line)
        if not line or item or line.startswith(("|", "#", ":::", "<", "![")):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph))
            yield from filter(None, re.split(r"(?<=[.!?])[*)]*\s+(?=[A-Z`*(\"])", text))
            paragraph = [item[1]] if item else []
        else:
            paragraph.append(line)


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a Python source as a page: each argument and exception is a list item."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented):
            text = re.sub(r"(?m)^ *\w+ ?[\w ()]*:$", "", ast.get_docstring(node) or "")  # headings such as "Args:"
            yield re.sub(r"(?m)^ +[*`\w, .()]+: ", "- ", text)


def messages(source: str) -> Iterator[str]:
    """The texts of the errors that a Python source raises, without what is put into them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise):
            parts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            yield "".join(part for part in parts if isinstance(part, str))


def test_no_sentence_is_long() -> None:
    pages = [(path, path.read_text("utf-8")) for path in PAGES]
    for path in MODULES:
        source = path.read_text("utf-8")
        pages += [(path, text) for text in (*docstrings(source), *messages(source))]
    long = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path, page in pages
        for sentence in sentences(page)
        if len(sentence.split()) > 35
    ]
    assert long == []


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120
    links = re.findall(r"\]\(([^)#]+)|(?:src|srcset)=\"([^\"]+)", text)
    found = {one or other for one, other in links}
    assert len(found) > 20
    assert [link for link in found if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_every_included_program_has_a_link() -> None:
    included = 0
    for path in PAGES:
        text = path.read_text("utf-8")
        for name in re.findall(r'(?m)^--8<-- "(.+)"$', text):
            [link] = re.findall(rf"\[{re.escape(name)}\]\((.+?)\)", text)
            assert (path.parent / link).samefile(ROOT / name)
            included += 1
    assert included == len(list(ROOT.glob("examples/*.py")))


def test_the_picture_shows_the_committed_result() -> None:
    if not (ROOT / "benchmarks/results").is_dir():
        pytest.skip("needs the results")
    from benchmarks import draw_start

    result = draw_start.read()
    for scheme, colours in draw_start.COLOURS.items():
        drawn = (draw_start.FOLDER / f"start-{scheme}.svg").read_text("utf-8")
        assert drawn == draw_start.draw(result, colours), "run python -m benchmarks.draw_start"


def test_the_page_of_the_command_line_is_its_help() -> None:
    from tools import command_line_page

    expected = command_line_page.page()
    assert command_line_page.PAGE.read_text("utf-8") == expected, "run python -m tools.command_line_page"


def test_the_page_of_numbers_is_the_cores() -> None:
    from tools import numbers_page

    assert numbers_page.PAGE.read_text("utf-8") == numbers_page.page(), "run python -m tools.numbers_page"


def test_the_stub_of_the_core_has_the_types_of_its_bindings() -> None:
    from tools import core_stub

    if not core_stub.STUB.exists():
        pytest.skip("needs the sources")
    assert core_stub.STUB.read_text("utf-8") == core_stub.stub(), "run python -m tools.core_stub"


def test_every_public_name_is_documented_and_on_the_reference_page() -> None:
    griffe = pytest.importorskip("griffe")
    if not (ROOT / "python").is_dir():
        pytest.skip("needs the sources")
    package = griffe.load("ortmulti", search_paths=[ROOT / "python"])
    page = (ROOT / "docs/reference/python.md").read_text("utf-8")
    listed = set(re.findall(r"^::: ortmulti\.(\w+)$", page, re.MULTILINE))
    undocumented, names = [], set()

    def look(path: str, thing: Any) -> None:
        if not thing.docstring:
            undocumented.append(path)
        elif thing.is_class:
            enumeration = any("Enum" in str(base) for base in thing.bases)
            for name, member in thing.members.items():
                in_class = re.search(rf"^\s*(\w+, )*{name}\b.*:", thing.docstring.value, re.MULTILINE)
                if not name.startswith("_") and not (enumeration or (member.is_attribute and in_class)):
                    look(f"{path}.{name}", member)

    for name in vars(ortmulti)["__all__"]:
        thing = package.members[name]
        thing = thing.final_target if thing.is_alias else thing
        if not thing.is_module and not name.startswith("_"):
            names.add(name)
            look(name, thing)
    assert undocumented == []
    assert listed == {name for name in names if not hasattr(errors, name)}, "docs/reference/python.md"


def test_every_error_and_metric_is_listed() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text("utf-8")
    assert {name for name in errors.__all__ if f"`{name}`" not in page} == {"Error"}
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("rows", pools.rows(), version="1")
        service = Service(repository)
        service.texts["texts"] = cast(ServedTexts, None)  # there is one: its counts are listed, too
        pages = ortmulti.metrics({"models": repository}) + service.metrics()
    printed = set(re.findall(r"(?m)^# TYPE (\w+) (\w+)", pages))
    assert printed == set(re.findall(r"(?m)^\| `(\w+)` \| (\w+)", page))


def test_every_limit_of_a_server_is_listed_with_its_default() -> None:
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    page = (ROOT / "docs/reference/server.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([\d,]+) ?(\w*) \| ", page)
    listed = {name: int(number.replace(",", "")) * units.get(unit, 1) for name, number, unit in rows}
    assert listed == vars(Limits())


FOREIGN = {"No matching distribution found for ortmulti", "Protobuf parsing failed", "only *guarantees* support"}


def test_every_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    if not (ROOT / "cpp").is_dir():
        pytest.skip("needs the sources")
    paths = [path for kind in ("python/**/*.py", "cpp/**/*.cpp", "cpp/**/*.hpp") for path in ROOT.glob(kind)]
    texts = (path.read_text("utf-8") for path in paths)
    code = "".join(re.sub(r'"\s*\n\s*[fr]*"', "", text) for text in texts)  # literals over several lines
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    messages = {name for row in re.findall(r"(?m)^\| (`.*?) \| ", page) for name in re.findall(r"`([^`]+)`", row)}
    assert {message for message in messages if message not in code} == FOREIGN


X = pools.row(0)["x"]


def _closed(pool: ortmulti.Pool) -> object:
    pool.close()
    return pool.run(None, {"x": X})


MISTAKES: dict[str, Callable[[ortmulti.Pool], object]] = {
    "there is no model file": lambda _: ortmulti.load("missing.onnx", "cpu"),
    "Protobuf parsing failed": lambda _: ortmulti.load(__file__, "cpu"),
    "a model is a path or bytes": lambda _: ortmulti.load(3, "cpu"),
    "unknown device": lambda _: ortmulti.load(pools.rows(), "tpu"),
    "is not one of this ONNX Runtime's": lambda _: ortmulti.InferenceSession(pools.rows(), providers=["Nosuch"]),
    "unknown input": lambda pool: pool.run(None, {"y": X}),
    "unknown output": lambda pool: pool.run(["z"], {"x": X}),
    "are missing from input feed": lambda pool: pool.run(None, {}),
    "takes an array of dtype": lambda pool: pool.run(None, {"x": X.astype(np.float64)}),
    "must be a dict of the inputs' names and values": lambda pool: pool.run(None, [X]),
    "the inputs are a dict of their names and values": lambda pool: pool.run(X),
    "the pool has no session on": lambda pool: pool.run(None, {"x": X}, device="cuda:7"),
    "the pool is closed": _closed,
}


@pytest.mark.parametrize("message", MISTAKES)
@pytest.mark.usefixtures("silent")
def test_messages_of_the_troubleshooting_page_are_real(message: str) -> None:
    assert f"`{message}`" in (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    with ortmulti.load(pools.rows(), "cpu") as pool, pytest.raises(ortmulti.Error, match=re.escape(message)):
        MISTAKES[message](pool)
