"""Draw README's picture of a start from a result of `ortmulti bench create`: a light and a dark SVG.

python -m benchmarks.draw_start
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks/results/measurements.json"
NAME = "create-shared-ten-pairs-1.31.1-4xh200"
FOLDER = ROOT / "docs/images"

COLOURS = {
    "light": {"text": "#1f2328", "weak": "#59636e", "load": "#0969da", "other": "#afb8c1", "floor": "#bc4c00"},
    "dark": {"text": "#f0f6fc", "weak": "#9198a1", "load": "#4493f8", "other": "#59636e", "floor": "#f0883e"},
}
LABELS = {
    "shared": "ortmulti.load",
    "threads": "onnxruntime, Python threads",
    "processes": "onnxruntime, processes",
}
LEFT, SCALE, BAR, STEP, TOP = 225, 190, 26, 40, 46  # pixels; SCALE: of a second


def draw(result: dict[str, Any], colours: dict[str, str]) -> str:
    """One SVG: a bar for each strategy, and a line where the driver's own start ends."""
    rows = {row["strategy"]: row for row in result["rows"]}
    floor = rows["shared"]["driver_floor"][0]
    bottom = TOP + STEP * len(LABELS)

    def text(x: float, y: float, content: str, colour: str, more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colours[colour]}" {more}>{content}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {bottom + 34}" role="img"'
        ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14">',
        "<title>Seconds until a 7.64 GB model can run on four H200</title>",
        text(0, 18, "Seconds until a 7.64 GB model can run on each of four H200", "text", 'font-weight="600"'),
    ]
    for number, (strategy, label) in enumerate(LABELS.items()):
        seconds = rows[strategy]["creation"][0]
        # Workers are interpreters, which have to start before.
        before = rows[strategy]["starting"][0] if strategy == "processes" else 0.0
        y = TOP + STEP * number
        colour = colours["load" if strategy == "shared" else "other"]
        if before:
            box = f'x="{LEFT}" y="{y}" width="{before * SCALE:.1f}" height="{BAR}"'
            parts.append(f'<rect {box} fill="{colour}" fill-opacity="0.5"/>')
        box = f'x="{LEFT + before * SCALE:.1f}" y="{y}" width="{seconds * SCALE:.1f}" height="{BAR}"'
        parts.append(f'<rect {box} fill="{colour}"/>')
        parts.append(text(LEFT - 10, y + 18, label, "text", 'text-anchor="end"'))
        shown = f"{before:.2f} + {seconds:.2f}" if before else f"{seconds:.2f}"
        parts.append(text(LEFT + (before + seconds) * SCALE + 8, y + 18, shown, "text"))
    x = LEFT + floor * SCALE
    parts.append(f'<path d="M{x:.1f} {TOP - 8}V{bottom}" stroke="{colours["floor"]}" stroke-dasharray="4 3"/>')
    parts.append(text(x, bottom + 16, f"the CUDA driver's own start: {floor:.2f}", "floor", 'text-anchor="middle"'))
    parts.append("</svg>\n")
    return "\n".join(parts)


def read() -> dict[str, Any]:
    """Return the result."""
    found: dict[str, Any] = json.loads(RESULT.read_text("utf-8"))["results"][NAME]
    return found


def main() -> None:
    result = read()
    for scheme, colours in COLOURS.items():
        (FOLDER / f"start-{scheme}.svg").write_text(draw(result, colours), "utf-8")


if __name__ == "__main__":
    main()
