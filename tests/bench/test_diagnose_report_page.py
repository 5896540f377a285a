"""The page of a diagnosis in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortmulti.bench.diagnose.report.page import write_html
from ortmulti.bench.diagnose.report.plot import page_figures
from ortmulti.bench.files import printable
from tests.support import chromium, diagnosis

DOCUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "whole": diagnosis.make_document,
    "hostile": diagnosis.make_hostile,
    "partial": diagnosis.make_partial,
    "empty": diagnosis.make_empty,
    "on the CPU": lambda: diagnosis.make_document((2,), repeat=1, gpus=False, findings=[]),
}


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
  if (!e.checkVisibility()) continue;
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
  const [one, other] = [light(getComputedStyle(e).color), light(behind(e))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < 4.5) weak.push([e.tagName, e.className, e.textContent.trim().slice(0, 30), contrast]);
}
return weak;
"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_page_fits_its_window_and_asks_for_nothing(
    name: str, width: int, scheme: str, browser: chromium.Browser, pages: Pages
) -> None:
    document, path = pages[name]
    browser.show(path, width, 900, scheme)
    browser.settle()
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert [url for url in browser.requests() if not url.startswith("data:")] == [path.resolve().as_uri()]
    # Violations of its own policy would be written there.
    assert browser.log("browser") == []
    assert browser.run(_CONTRAST) == []
    text = " ".join(browser.run("return document.body.innerText").split())
    for finding in document["findings"]:
        for part in (finding["title"], finding["change"], *finding["evidence"]):
            assert " ".join(printable(part).split()) in text
    assert ("Partial:" in text) == bool(document["partial"])
    assert ("No findings" in text) == (not document["findings"])


def test_the_schemes_differ(browser: chromium.Browser, pages: Pages) -> None:
    """The page's and its figures'."""
    seen = []
    for scheme in ("light", "dark"):
        browser.show(pages["partial"][1], scheme=scheme)
        browser.settle()
        seen.append(
            browser.run(
                "return [getComputedStyle(document.body).backgroundColor,"
                " ...[...document.images].map((image) => image.naturalWidth > 500 && image.currentSrc)]"
            )
        )
    assert len(seen[0]) == 1 + len(page_figures(pages["partial"][0], "light")) > 2
    assert all(light and dark and light != dark for light, dark in zip(*seen, strict=True))


def test_names_stay_text(browser: chromium.Browser, pages: Pages) -> None:
    browser.show(pages["hostile"][1])
    assert browser.run("return document.title") == f"Diagnosis of {diagnosis.HOSTILE[0]} (102 MB)"
    assert browser.run("return document.querySelectorAll('#broken, iframe, script, img:not(figure img)').length") == 0


def test_all_of_it_is_there(browser: chromium.Browser, pages: Pages) -> None:
    document, path = pages["whole"]
    browser.show(path)
    assert browser.run("return document.querySelectorAll('#findings ol > li').length") == len(document["findings"])
    assert browser.run("return document.querySelectorAll('#trace tbody tr').length") > 30
    assert browser.run("return document.querySelectorAll('#timeline tbody tr').length") == 15
    assert browser.run("return document.querySelectorAll('figure img').length") == 3


def test_print(browser: chromium.Browser, pages: Pages) -> None:
    browser.show(pages["whole"][1], scheme="dark")
    assert browser.pdf().startswith(b"%PDF")
    browser.devtools("Emulation.setEmulatedMedia", media="print", features=[])
    browser.settle()
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("return document.querySelector('nav').checkVisibility()") is False
    assert browser.run(_CONTRAST) == []
