"""For mkdocs: `llms.txt`, an index of the site for language models: each page with its first sentence, by section."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# What a reader can do without, in the words of https://llmstxt.org.
_OPTIONAL = {"Measurements", "Inside"}
_sentences: dict[str, str] = {}


def on_page_markdown(markdown: str, page: Any, **_: object) -> None:
    """Called by mkdocs for each page."""
    _sentences[page.url] = first_sentence(markdown)


def on_nav(nav: Any, **_: object) -> None:
    """Called by mkdocs with the menu."""
    global _menu
    _menu = nav


def on_post_build(config: Any, **_: object) -> None:
    """Called by mkdocs when the site is there."""
    text = index(config.site_name, config.site_description, _menu.items)
    Path(config.site_dir, "llms.txt").write_text(text, encoding="utf-8")


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page's first paragraph, without links and emphasis."""
    for block in re.split(r"\n\s*\n", re.sub(r"(?ms)^```.*?^```", "", markdown)):
        text = " ".join(block.split())
        if re.match(r"[A-Z`*\[\d]", text):
            text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text).replace("**", "")
            return re.split(r"(?<=[.:!?])\s", text, maxsplit=1)[0].rstrip(":")
    return ""


def index(name: str, description: str, items: list[Any]) -> str:
    """Return the text of the index, for the items of the menu."""
    sections: dict[str, list[str]] = {"Start": []}
    for item in items:
        title = "Optional" if item.title in _OPTIONAL else item.title if item.is_section else "Start"
        for page in item.children if item.is_section else [item]:
            sections.setdefault(title, []).append(f"- [{page.title}]({page.url}): {_sentences[page.url]}")
    parts = [f"# {name}", f"> {description}"]
    parts += [f"## {title}\n\n" + "\n".join(lines) for title, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


_menu: Any = None
