"""Text from files and models, fit for a terminal or a page."""

from __future__ import annotations


def printable(text: str) -> str:
    """Replace the characters that a terminal or a browser obeys instead of shows: control and direction characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else f"\\u{ord(c):04x}" for c in text)


def printable_lines(text: str) -> str:
    """As `printable`, and keep the line breaks."""
    return "\n".join(map(printable, text.split("\n")))
