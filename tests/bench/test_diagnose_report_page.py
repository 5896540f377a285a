"""The page of a diagnosis in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ortmulti.bench.diagnose.causes import CAUSES
from ortmulti.bench.diagnose.report.html import write_html
from tests.support import chromium, diagnosis

pytestmark = pytest.mark.skipif(
    not (chromium.CHROMIUM and chromium.DRIVER), reason="needs Chromium and chromedriver (chromium, chromium-driver)"
)

DOCUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "whole": diagnosis.make_document,
    "hostile": diagnosis.make_hostile,
    "partial": diagnosis.make_partial,
    "empty": diagnosis.make_empty,
    "on the CPU": lambda: diagnosis.make_document((2,), repeat=1, pieces=False, gpus=False, findings=[]),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with chromium.browser() as shown:
        yield shown


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Path]]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, make in DOCUMENTS.items():
        document, path = make(), folder / f"{name}.html"
        write_html(document, path)
        found[name] = document, path
    return found


Pages = dict[str, tuple[dict[str, Any], Path]]

# The text of elements that have some of their own, with both colours' relative luminances.
_CONTRAST = """
const light = (colour) => {
  const channels = colour.match(/[\\d.]+/g).map(Number);
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = channels.slice(0, 3).map((c) => linear(c / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const weak = [];
for (const e of document.querySelectorAll("body *")) {
  if (e.closest("script, svg, noscript, .tip, option") || !e.checkVisibility()) continue;
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
  const [one, other] = [light(getComputedStyle(e).color), light(behind(e))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < 4.5) weak.push([e.tagName, e.className, e.textContent.trim().slice(0, 30), contrast]);
}
return weak;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_fits_its_window_and_asks_for_nothing(
    name: str, width: int, scheme: str, browser: chromium.Browser, pages: Pages, tmp_path: Path
) -> None:
    document, path = pages[name]
    browser.show(path, width, 900, scheme)
    browser.settle()
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.requests() == [path.resolve().as_uri()]
    # Violations of its own policy, and errors of its script, would be written there.
    assert browser.log("browser") == []
    assert browser.run(_CONTRAST) == []
    text = browser.run("return document.body.innerText")
    for finding in document["findings"]:
        shown = _normal(text)
        for part in (finding["title"], finding["change"], *finding["evidence"]):
            assert _normal(_printable(part)) in shown
    assert ("Partial:" in text) == bool(document["partial"])
    assert ("No findings" in text) == (not document["findings"])
    if name == "whole":
        browser.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _normal(text: str) -> str:
    return " ".join(text.split())


def test_the_schemes_differ(browser: chromium.Browser, pages: Pages) -> None:
    backgrounds = []
    for scheme in ("light", "dark"):
        browser.show(pages["partial"][1], scheme=scheme)
        backgrounds.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
        # The drawing has the page's background, a pixel of which is at its lower left corner.
        code = """const c = document.querySelector("canvas");
        return [...c.getContext("2d").getImageData(2, c.height - 3, 1, 1).data.slice(0, 3)].join(", ")"""
        browser.settle()
        assert f"rgb({browser.run(code)})" == backgrounds[-1]
    assert len(set(backgrounds)) == 2


def test_names_stay_text(browser: chromium.Browser, pages: Pages) -> None:
    document, path = pages["hostile"]
    browser.show(path)
    assert browser.run("return document.title") == f"Diagnosis of {diagnosis.HOSTILE[0]} (102 MB)"
    strange = "return document.querySelectorAll('#broken, img, iframe, body script:not([type]) ~ *').length"
    assert browser.run(strange) == 0
    # Four scripts: three of data, one that runs.
    assert browser.run("return document.scripts.length") == 4
    embedded = browser.run("return JSON.parse(document.getElementById('document').textContent)")
    assert embedded == json.loads(json.dumps(document))


def test_a_span_is_told_of_by_mouse_and_by_keyboard(browser: chromium.Browser, tmp_path: Path) -> None:
    document = diagnosis.make_document((1,), repeat=1, pieces=False)
    run = document["runs"][0]
    run["wall"] = 2.0
    span = {
        "cause": "context", "name": "<i>context</i>", "start": 0.5, "end": 1.5, "thread": 7, "session": 0,
        "device": "cuda:0", "cpu": 0.25,
    }  # fmt: skip
    inner = {**span, "name": "inner", "cause": "cuInit", "start": 0.6, "end": 0.8, "cpu": None}
    run["spans"] = [inner, span]
    for other in document["runs"][1:]:
        other["spans"] = []
    write_html(document, tmp_path / "page.html")
    browser.show(tmp_path / "page.html")
    browser.run("document.querySelector('.view').scrollIntoView({block: 'center', behavior: 'instant'})")
    browser.settle()
    box = browser.run("const b = document.querySelector('canvas').getBoundingClientRect(); return [b.x, b.y, b.width]")

    def details() -> dict[str, str]:
        code = """return [...document.querySelectorAll('.details dl > div')].map(
            (fact) => [fact.children[0].textContent, fact.children[1].textContent])"""
        return dict(browser.run(code))

    assert details() == {}
    # 150 pixels of labels on the left, 10 free on the right; the first lane is below a ruler of 28.
    middle = box[0] + 150 + (box[2] - 160) / 2
    browser.point(middle, box[1] + 48)
    cause = CAUSES["context"]
    told = {
        "Name": "<i>context</i>",
        "Cause": f"{cause.title}: {cause.explanation}",
        "Device": "cuda:0, session 0",
        "Thread": "7",
        "Start": "500.00 ms",
        "Length": "1.00 s, 50.0%",
        "On the CPU": "25%",
    }
    assert details() == told
    assert browser.run("const tip = document.querySelector('.tip'); return !tip.hidden && tip.textContent").startswith(
        "<i>context</i>"
    )
    browser.point(5, box[1] + 5)
    assert details() == {}

    browser.run("document.querySelector('.view').focus()")
    browser.press("ArrowRight")
    assert details() == told
    browser.press("ArrowDown")
    assert (details()["Name"], details()["On the CPU"]) == ("inner", "unknown")
    browser.press("Enter", "ArrowUp")
    assert details() == told
    # The inner span, zoomed to, is in the middle now, in the second lane.
    browser.point(middle, box[1] + 68)
    assert details()["Name"] == "inner"
    browser.drag((middle, box[1] + 68), (middle - box[2] / 2, box[1] + 68))
    browser.point(middle, box[1] + 68)
    assert details()["Name"] != "inner"
    browser.point(5, box[1] + 5)
    browser.press("Escape")
    assert details() == {}


def test_runs_are_chosen_by_the_list_and_by_their_bars(browser: chromium.Browser, pages: Pages) -> None:
    document, path = pages["whole"]
    browser.show(path)
    code = "const s = document.querySelector('select'); return [s.options.length, s.selectedOptions[0].textContent]"
    assert browser.run(code) == [len(document["runs"]), "sequential, 8 devices: 9.95 s"]
    browser.run("document.querySelectorAll('.row svg.bar')[9].dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert browser.run(code)[1] == "shared, 8 devices: 3.10 s"
    # All causes of that run, and no other, can be emphasized.
    [run] = [run for run in document["runs"] if run["id"] == "trace-shared-8-0"]
    shown = browser.run(
        "return [...document.querySelectorAll('.causes button')].map((b) => b.firstChild.nextSibling.data)"
    )
    assert [text.strip() for text in shown] == [
        CAUSES[name].title for name in CAUSES if name in {span["cause"] for span in run["spans"]}
    ]


def test_thousands_of_spans_are_laid_out_and_reached(browser: chromium.Browser, tmp_path: Path) -> None:
    document = diagnosis.make_document((1,), repeat=1, pieces=False)
    document["runs"] = document["runs"][:1]
    names = list(CAUSES)
    document["runs"][0]["spans"] = [
        {
            "cause": names[(number + lane) % len(names)], "name": f"node {number}", "start": number / 1000,
            "end": (number + 0.9) / 1000, "thread": lane, "session": lane, "device": f"cuda:{lane}", "cpu": None,
        }
        for lane in range(8)
        for number in range(2000)
    ]  # fmt: skip
    write_html(document, tmp_path / "page.html")
    browser.show(tmp_path / "page.html")
    browser.run("document.querySelector('.view').focus()")
    browser.press("ArrowRight", "End")
    name = "return document.querySelector('.details .name').textContent"
    assert browser.run(name) == "node 1999"
    browser.press(*["ArrowDown"] * 7)
    assert browser.run("return document.querySelectorAll('.details dd')[2].textContent") == "cuda:7, session 7"
    assert browser.run(name) == "node 1999"


def test_without_scripts_findings_and_tables_are_there(browser: chromium.Browser, pages: Pages, tmp_path: Path) -> None:
    """A page whose script does not run, in a browser that otherwise does."""
    document, path = pages["whole"]
    without = tmp_path / "page.html"
    without.write_text(re.sub(r"script-src '[^']*'", "script-src 'none'", path.read_text("utf-8")), "utf-8")
    browser.show(without)
    assert browser.run("return document.querySelector('canvas')") is None
    text = _normal(browser.run("return document.body.innerText"))
    assert all(_normal(finding["title"]) in text for finding in document["findings"])
    assert browser.run("return document.querySelectorAll('#trace tbody tr').length") > 30
    assert browser.run("return document.querySelectorAll('#timeline tbody tr').length") == 15
    assert browser.run("return document.querySelectorAll('#scaling polyline').length") == 5
    assert browser.run("return document.querySelectorAll('#trace svg.bar').length") == 10


def test_print(browser: chromium.Browser, pages: Pages) -> None:
    browser.show(pages["whole"][1], scheme="dark")
    assert browser.pdf().startswith(b"%PDF")
    browser.devtools("Emulation.setEmulatedMedia", media="print", features=[])
    browser.settle()
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("return document.querySelector('.toolbar').checkVisibility()") is False
    assert browser.run(_CONTRAST) == []
