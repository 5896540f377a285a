"""The benchmark reports a ratio that dropped by more than its noise, and the page draws the history."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import bars
from tools import site_bars


def row(value: float, **others: Any) -> dict[str, Any]:
    return {
        "commit": "c",
        "date": "d",
        "cpu": "a",
        "onnxruntime": "1",
        **dict.fromkeys(bars.RATIOS, 2.0),
        "text": value,
        **others,
    }


@pytest.mark.parametrize(
    ("before", "value", "dropped"),
    [
        ([2.0] * 5, 1.79, True),
        ([2.0] * 5, 1.81, False),
        ([2.0] * 5, 3.0, False),
        ([2.0] * 4, 0.1, False),  # too few rows
        ([1.6, 1.8, 2.0, 2.2, 2.4], 1.5, False),  # within three times 0.2
        ([1.6, 1.8, 2.0, 2.2, 2.4], 1.39, True),
        ([9.0] * 20 + [2.0] * 10, 1.9, False),  # the last rows alone
        ([2.0] * 9 + [1.0], 1.0, True),  # a drop stays one on the next night
    ],
)
def test_a_drop_is_one_beyond_a_tenth_and_the_spread(before: list[float], value: float, dropped: bool) -> None:
    history = [row(each) for each in before]
    found = bars.drops(history, row(value))
    assert [text.split()[0] for text in found] == ["text"] * dropped
    assert bars.drops([{**each, "cpu": "b"} for each in history], row(value)) == []


def test_the_page_draws_the_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    history = tmp_path / "bars.jsonl"
    monkeypatch.setattr(site_bars, "HISTORY", history)
    assert site_bars.on_page_markdown("a <!-- bars -->") == "a <!-- bars -->"
    history.write_text("".join(f"{json.dumps(row(value))}\n" for value in (2.0, 1.0)))
    svg = site_bars.on_page_markdown("<!-- bars -->").removeprefix("<div>").removesuffix("</div>")
    tree = ElementTree.fromstring(svg)
    lines = [one.get("points") for one in tree.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == len(bars.RATIOS)
    assert lines[0] == "130.0,8.0 710.0,8.0"
    assert lines[3] == "130.0,176.0 710.0,196.0"  # half as high
