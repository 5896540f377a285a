"""For mkdocs: links to the programs in examples/, which the site includes, become plain names."""

from __future__ import annotations

import re


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs for each page."""
    return re.sub(r"\[(examples/\w+\.py)\]\([./]+\1\)", r"`\1`", markdown)
