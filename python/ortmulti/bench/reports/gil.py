"""The report of `ortmulti bench gil`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ortmulti.bench.reports.tables import Column, Report, Sheet, model_text, times_text

Json = Mapping[str, Any]

_NOTES = (
    "Medians, below them the ranges. delay: how long a Python thread beside the creation stood still in all; largest: "
    "at once, in percent of the creation."
)


def _percent(value: float) -> str:
    return f"{value:.1f}%"


COLUMNS = (
    Column("creation", "creation, s"),
    Column("delay", "delay, s"),
    Column("largest"),
    Column("delay_share", "delay / creation", scale=0.01, text=_percent),
    Column("largest_share", "largest / creation", scale=0.01, text=_percent),
)


def headline(document: Json) -> str:
    """Return one sentence: for which part of a creation other threads stand still."""
    shares = [
        f"{_percent(100 * row['delay_share']['median'])} of a creation by {row['library']}"
        for row in document["rows"]
        if row["delay_share"]
    ]
    text = f"other Python threads stand still for {' and '.join(shares)}" if shares else "nothing was measured"
    return f"{document['models'][0]['name']} on {document['settings']['device']}: {text}."


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield the table."""
    how = f"{document['settings']['page_cache']} page cache, {times_text(document['settings']['repeat'], 'repetition')}"
    title = f"{model_text(document['models'][0])}, {how}"
    labels = ["library", "release"]
    yield Sheet(title, labels, lambda row: [(row[name] or "-", "") for name in labels], COLUMNS, document["rows"])


REPORT = Report(headline, sheets, lambda _document, _details: _NOTES)
