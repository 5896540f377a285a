"""From runs to conclusions: fills a document's "serialization", "prediction" and "findings"."""

from __future__ import annotations

from typing import Any

from . import findings
from .measured import Measured
from .prediction import prediction
from .serialization import serialization


def conclude(document: dict[str, Any]) -> list[findings.Finding]:
    """Fills in what follows from a document's runs, however few they are.

    Args:
        document: of kind "diagnose", with its runs; "serialization", "prediction" and "findings" are set.

    Returns:
        The findings, the one that would save most first, with how each can be verified.
    """
    conclude_again(document)
    found = findings.find(Measured(document), document["prediction"])
    document["findings"] = [finding.as_json() for finding in found]
    return found


def conclude_again(document: dict[str, Any]) -> None:
    """Fills in a document's "serialization" and "prediction" alone, after further runs."""
    measured = Measured(document)
    document["serialization"] = serialization(measured)
    document["prediction"] = prediction(measured)
