"""For mkdocs: `<!-- bars -->` in a page becomes a figure of the history that `python -m benchmarks.bars` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HISTORY = Path(__file__).resolve().parent.parent / "benchmarks/results/bars.jsonl"
HEIGHT, LEFT, RIGHT = 56, 130, 710  # of a ratio's strip; where its line begins and ends


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by mkdocs for each page."""
    if "<!-- bars -->" not in markdown or not HISTORY.exists():
        return markdown
    rows = [json.loads(line) for line in HISTORY.read_text("utf-8").splitlines()]
    return markdown.replace("<!-- bars -->", f"<div>{draw(rows)}</div>")


def draw(rows: list[dict[str, Any]]) -> str:
    """One SVG: a strip for each ratio, from 0 up, with a point for each row."""
    names = [name for name in rows[-1] if isinstance(rows[-1][name], float)]
    shape = f'viewBox="0 0 720 {HEIGHT * len(names)}" fill="currentColor" font-family="sans-serif" font-size="14"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {shape}><title>Ratios over commits</title>']
    for number, name in enumerate(names):
        bottom, highest = HEIGHT * (number + 1) - 8, max(row[name] for row in rows)
        step = (RIGHT - LEFT) / max(1, len(rows) - 1)
        points = [(LEFT + step * at, bottom - (HEIGHT - 16) * row[name] / highest) for at, row in enumerate(rows)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<path d="M{LEFT} {bottom}H{RIGHT}" stroke="currentColor" stroke-opacity="0.3"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="#4493f8" stroke-width="2"/>')
        for (x, y), row in zip(points, rows, strict=True):
            told = f"{row[name]:.3g}: {row['commit']}, {row['date']}, {row['cpu']}"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#4493f8"><title>{told}</title></circle>')
        parts.append(f'<text x="{LEFT - 10}" y="{bottom - 12}" text-anchor="end">{name} {rows[-1][name]:.3g}</text>')
    return "".join([*parts, "</svg>"])
