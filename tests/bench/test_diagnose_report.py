"""Reports of a diagnosis: read again, printed, and the page."""

from __future__ import annotations

import copy
import io
import itertools
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ortmulti.bench.diagnose.causes import CAUSES
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.diagnose.report import load_document, view
from ortmulti.bench.diagnose.report.page import write_html
from ortmulti.bench.diagnose.report.plot import page_figures
from ortmulti.bench.diagnose.report.terminal import print_diagnosis
from ortmulti.bench.files import printable
from ortmulti.cli.diagnose import diagnose_command
from ortmulti.errors import InvalidArgument, LibraryError, NoSuchFile
from tests.support import diagnosis
from tests.support.processes import check_child

MAKERS = (diagnosis.make_document, diagnosis.make_hostile, diagnosis.make_partial, diagnosis.make_empty)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return diagnosis.make_document()


# --- documents


@pytest.mark.parametrize("make", MAKERS)
def test_a_saved_document_is_loaded_as_it_was(make: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    document = make()
    assert load_document(diagnosis.save(document, tmp_path)) == json.loads(json.dumps(document))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "create"}, "is a result of kind 'create', not a diagnosis"),
        ({"schema_version": 1}, "has schema version 1; this release reads"),
        ({"seconds": float("inf")}, "Out of range float values"),
        ({"runs": None}, "is not a whole diagnosis (TypeError: "),
        ({"findings": [{}]}, "is not a whole diagnosis (KeyError: "),
        ("[]", "is a result of kind None, not a diagnosis"),
        ("no json", "is not a result file: "),
        ("[" * 100_000, "is not a result file: "),
        (None, "does not exist"),
    ],
)
def test_a_document_that_cannot_be_reported_is_one_error(
    changes: dict[str, Any] | str | None, message: str, document: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "diagnosis.json"
    if isinstance(changes, str):
        file.write_text(changes)
    elif changes is not None:
        diagnosis.save({**document, **changes}, tmp_path)
    with pytest.raises((InvalidArgument, NoSuchFile)) as caught:
        diagnose_command(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- what all of them show


def test_the_first_sentence_compares_with_plain_onnxruntime(document: dict[str, Any]) -> None:
    walls = {one.way: one.wall for one in view.traces(document) if len(one.devices) == 8}
    fastest = min(walls, key=lambda way: walls[way])
    text = view.headline(document)
    assert text.startswith("Today, with plain onnxruntime in a loop, the first answers on cuda:0-7 take ")
    assert (
        f"with {fastest} they take {seconds_text(walls[fastest])}, {walls['sequential'] / walls[fastest]:.2f}" in text
    )
    same = copy.deepcopy(document)
    for run in same["runs"]:
        run["wall"] = 2.0
    assert "no way is clearly faster" in view.headline(same)
    # A difference that the measurement itself makes is none of the way's.
    for run in same["runs"]:
        slow = run["way"] == "sequential" and run.get("causes")
        run.update({"wall": 4.0, "causes": {**run["causes"], "measurement": 2.0}} if slow else {})
    assert "no way is clearly faster" in view.headline(same)
    same["runs"] = [run for run in same["runs"] if run["way"] != "sequential"]
    assert "onnxruntime in a loop" not in view.headline(same)


def test_the_median_run_stands_for_its_way(document: dict[str, Any]) -> None:
    three = copy.deepcopy(document)
    extra = {**three["runs"][0], "wall": 100.0}
    three["runs"] += [extra, {**extra, "experiment": "gil"}]
    trace = view.traces(three)[0]
    walls = sorted(one["wall"] for one in document["runs"] if (one["way"], len(one["devices"])) == ("sequential", 1))
    assert (trace.walls, trace.wall) == ((*walls, 100.0), walls[1])
    assert [(one.way, len(one.devices)) for one in view.traces(document)] == [
        (way, count) for count in (1, 8) for way in diagnosis.WAYS
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (0.0004, "0.4 ms"), (0.0324, "32.4 ms"), (0.0999, "100 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"),
     (9.949, "9.95 s"), (9.996, "10 s"), (12.34, "12.3 s"), (123.4, "123 s")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("changes", "gained", "begin"),
    [
        ({}, True, "Verified: 7.60 s before, 3.31 s after (medians); in pairs 2.3 times as fast (2.1 to 2.5); "),
        ({"confidence": 0.96, "pairs": 6}, True, "Verified: "),
        ({"interval": [0.99, 4.0]}, False, "Tried, no certain gain: "),
        ({"confidence": 0.5, "pairs": 2}, False, "Not verified: faster in each of 2 pairs, but 6 pairs are needed: "),
        (None, False, "Not verified by a run."),
    ],
)
def test_a_gain_is_confirmed_by_its_interval_and_enough_pairs(
    changes: dict[str, Any] | None, gained: bool, begin: str
) -> None:
    found, text = view.verified_text(None if changes is None else {**diagnosis.VERIFIED, **changes})
    assert (found, text[: len(begin)]) == (gained, begin)


# --- the terminal


def printed(document: dict[str, Any], width: int, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    print_diagnosis(document, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 160])
@pytest.mark.parametrize("make", MAKERS)
def test_the_terminal_shows_all_of_it(make: Callable[[], dict[str, Any]], width: int) -> None:
    document = make()
    text = printed(document, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    squeezed = "".join(text.split())
    for finding in document["findings"]:
        for part in (finding["title"], finding["change"], finding["command"] or "", *finding["evidence"]):
            assert "".join(printable(part).split()) in squeezed
    assert ("partial" in text) == bool(document["partial"])
    assert not any(not c.isprintable() for c in text.replace("\n", ""))
    for failure in view.failures(document):
        assert "".join(failure.split()) in squeezed


def test_bars_are_to_scale(document: dict[str, Any]) -> None:
    text = printed(document, 100)
    # Of two bars of a way the second one is that on 8 devices; 100 columns are for names, spaces and figures too.
    bars = dict(re.findall(r"(?m)^(\w+) +([A-Z]+) [\d.]+ s$", text))
    walls = {one.way: one.wall for one in view.traces(document) if len(one.devices) == 8}
    longest = max(walls.values())
    for way, wall in walls.items():
        assert len(bars[way]) == pytest.approx(78 * wall / longest, abs=1)
    # Most of it is what most of the letters are.
    assert f"\n{max(bars['threads'], key=bars['threads'].count)} Waiting for the GIL" in text


def test_without_matplotlib_the_extra_is_named(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LibraryError, match=r"ortmulti\[plot\]"):
        write_html(document, tmp_path / "page.html")


# --- the page


@pytest.mark.parametrize("make", MAKERS)
def test_the_page_is_one_file(make: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    document = make()
    write_html(document, tmp_path / "page.html")
    parser, tags = HTMLParser(), list[tuple[str, dict[str, str | None]]]()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))  # type: ignore[method-assign]
    parser.feed((tmp_path / "page.html").read_text("utf-8"))
    assert not {"script", "iframe", "object", "embed", "form", "base", "b id=broken"} & {tag for tag, _ in tags}
    assert len([tag for tag, _ in tags if tag == "picture"]) == len(page_figures(document))
    policy = [attributes["content"] or "" for _, attributes in tags if "http-equiv" in attributes]
    assert [one.startswith("default-src 'none';") and "unsafe" not in one for one in policy] == [True]
    for name, value in itertools.chain.from_iterable(attributes.items() for _, attributes in tags):
        assert not name.startswith("on")
        assert name != "style"
        assert name not in ("src", "srcset", "href") or str(value).startswith(("#", "data:"))


def test_the_sentence_and_the_figures_below_it_agree(tmp_path: Path) -> None:
    """Also where the measurement's own time differs between the ways."""
    document = diagnosis.make_document()
    for run in document["runs"]:
        extra = 0.4 if run["way"] == "shared" else 0.1
        run.update(wall=run["wall"] + extra, causes={**run["causes"], "measurement": extra})
    walls = [one.wall for one in view.traces(document) if len(one.devices) == 8]
    write_html(document, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    for name, seconds in (("fastest", min(walls)), ("slowest", max(walls))):
        assert f"<dt>{name} here</dt><dd><strong>{seconds_text(seconds)}</strong>" in text
        assert f"take {seconds_text(seconds)}" in view.headline(document)
    assert "Measuring" not in text.partition('id="timeline"')[0] + printed(document, 160)


def test_thousands_of_spans_stay_a_page(tmp_path: Path) -> None:
    document = diagnosis.make_document((1,), repeat=1)
    del document["runs"][1:]
    run, causes = document["runs"][0], itertools.cycle(CAUSES)
    run["spans"] = [
        {**run["spans"][0], "cause": next(causes), "start": at / 1000, "end": (at + 0.9) / 1000, "thread": lane}
        for lane in range(2)
        for at in range(2000)
    ]
    write_html(document, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 500_000


def test_reports_load_nothing_before_they_are_made() -> None:
    code = """
        import sys
        import ortmulti.bench.diagnose.diagnosis, ortmulti.bench.diagnose.report.page
        print({name.partition(".")[0] for name in sys.modules} & {"rich", "matplotlib", "onnx", "onnxruntime"})
    """
    assert check_child(code) == "set()\n"
