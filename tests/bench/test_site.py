"""The documentation site in a real browser, from a web server on this machine and with no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import chromium
from tests.support.processes import ROOT

pytest.importorskip("mkdocstrings")

NAV = re.findall(r"([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "python").is_dir():
        pytest.skip("needs the sources")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(site)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout
            port = re.search(r"port (\d+)", server.stdout.readline())
            assert port
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            server.terminate()


def test_every_page_is_in_the_navigation(site: Path) -> None:
    """And built, with no warning: links, anchors and inclusions are right."""
    assert sorted(NAV) == sorted(str(p.relative_to(ROOT / "docs").with_suffix("")) for p in ROOT.glob("docs/**/*.md"))
    assert all((site / f"{page}.html").is_file() for page in NAV)


_COPIED = """const text = (elements) => elements.map((element) => element.textContent);
const buttons = [...document.querySelectorAll('button[data-clipboard-target]')];
return [text([...document.querySelectorAll('.highlight pre > code')]),
        text(buttons.map((button) => document.querySelector(button.dataset.clipboardTarget)))];"""


def test_pages_fit_their_window_and_ask_no_other_host(browser: chromium.Browser, address: str) -> None:
    for page in NAV:
        browser.show(f"{address}/{page}.html")
        browser.settle()
        assert browser.log("browser") == [], page
        assert [url for url in browser.requests() if not url.startswith((address, "data:"))] == [], page
        for width in (1280, 400) if page == "index" else (400,):
            browser.resize(width)
            assert browser.run("return document.documentElement.scrollWidth") == width, page
        # Every block of code has a button that copies it.
        blocks, copied = browser.run(_COPIED)
        assert copied == blocks, page
        if page == "how-to/fastapi":
            assert (ROOT / "examples/service.py").read_text("utf-8") in copied


_FOUND = """const done = arguments[0];
const read = () => [...document.querySelectorAll('.md-search-result__item a')].map((a) => a.pathname);
const look = () => read().length ? done(read()) : setTimeout(look, 50);
look();"""


def test_search_finds_load(browser: chromium.Browser, address: str) -> None:
    browser.show(f"{address}/index.html")
    browser.settle()
    browser.run("document.querySelector('.md-search__input').focus()")
    browser.press(*"load")
    found = browser.wait_for(_FOUND)
    assert {"/loading.html", "/reference/python.html"} <= set(found)
