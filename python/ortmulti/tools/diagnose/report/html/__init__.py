"""A diagnosis as one HTML page that needs nothing else: no network, no fonts or scripts of others."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.tools.diagnose.report import view
from ortmulti.tools.diagnose.report.colours import explanation, ordered, style, title
from ortmulti.tools.diagnose.report.document import check_document

from . import sections

__all__ = ["write_html"]

_FOLDER = Path(__file__).parent


def write_html(document: Mapping[str, Any], path: Path) -> None:
    """Writes a diagnosis as a page for a browser.

    Findings, accounts, tables and the scaling plot are there without JavaScript; the timeline is drawn by it. The
    document is in the page, as JSON in the element ``#document``. The page allows its own script and style alone.

    Args:
        document: the diagnosis; see `ortmulti.tools.diagnose.report.document.load_document`.
        path: the file to write.

    Raises:
        InvalidArgument: a field of the document is missing or not of its type.
        OSError: the file cannot be written.
    """
    check_document(document)
    text = _page(document)
    # Lone surrogates, as in names of files that are not UTF-8, become what HTML shows for them.
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8", errors="xmlcharrefreplace"))


def _page(document: Mapping[str, Any]) -> str:
    css = _read("page.css")
    script = "\n".join(_read(name) for name in ("layout.js", "drawing.js", "timeline.js", "start.js"))
    shown = view.default_run(document)
    return Template(_read("page.html")).substitute(
        title=html.escape(f"Diagnosis of {view.models_text(document)}"),
        css=css,
        css_hash=_hash(css),
        script=script,
        script_hash=_hash(script),
        document=_json(document),
        causes=_json(_causes(document)),
        shown=_json(view.number_of(shown, document) if shown else None),
        header=sections.header(document),
        findings=sections.findings(document),
        account=sections.account(document),
        timeline=sections.timeline(shown),
        serialization=sections.serialization(document),
        scaling=sections.scaling(document),
        machine=sections.machine(document),
        footer=sections.footer(document),
    )


def _causes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the script has to know of each cause, in their order."""
    names = {span["cause"] for run in document["runs"] for span in run.get("spans") or ()}
    names.update(cause for run in document["runs"] for cause in run.get("causes") or ())
    return [
        {
            "name": name,
            "title": title(name),
            "explanation": explanation(name),
            "colour": style(name).colour,
            "ink": style(name).ink,
            "hatched": style(name).hatched,
        }
        for name in ordered(names)
    ]


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _json(value: Any) -> str:
    """JSON that is nowhere the end of its element, nor a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
