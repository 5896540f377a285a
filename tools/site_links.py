"""For mkdocs: links to what is in examples/ and deploy/, outside of the site, become plain names."""

from __future__ import annotations

import re


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs for each page."""
    return re.sub(r"\[((?:examples|deploy)/[\w.]+)\]\([./]+\1\)", r"`\1`", markdown)
