"""Conclusions from the runs of a diagnosis: the findings of all rules, the one whose change would save most first."""

from __future__ import annotations

import itertools
from typing import Any

from ortmulti.bench.diagnose.measured import Measured, seconds_text
from ortmulti.bench.diagnose.rules import RULES, Finding
from ortmulti.bench.diagnose.serialization import prediction, serialization
from ortmulti.bench.measure.devices import describe

# The smallest saving that is worth a change: a share of the creation, and seconds.
_LEAST_SHARE = 0.05
LEAST_SECONDS = 0.02


def conclude(document: dict[str, Any]) -> list[Finding]:
    """Fill in the conclusions from a document's runs, however few they are.

    Args:
        document: of kind "diagnose", with its runs; "serialization", "prediction" and "findings" are set.

    Returns:
        The findings that are worth a change, the largest saving first, each with a way to verify it. Then findings
        without known seconds.
    """
    measured = conclude_again(document)
    found = _find(measured) if measured.usual else []
    document["findings"] = [finding.as_json() for finding in found]
    return found


def conclude_again(document: dict[str, Any]) -> Measured:
    """Fill in a document's "serialization" and "prediction" alone, after further runs."""
    measured = Measured(document)
    document["serialization"] = serialization(measured)
    document["prediction"] = prediction(measured)
    return measured


def _find(measured: Measured) -> list[Finding]:
    creation = measured.creation(measured.usual) or 0.0
    least = max(LEAST_SECONDS, _LEAST_SHARE * creation)
    worth = []
    for finding in itertools.chain.from_iterable(rule(measured) for rule in RULES):
        finding.seconds = max(finding.seconds, 0.0)
        share = finding.share or (finding.seconds / creation if creation else 0.0)
        finding.share = min(max(share, 0.0), 1.0)
        if finding.seconds == 0.0 or finding.seconds >= least:
            worth.append(finding)
    if not any(finding.seconds for finding in worth):
        worth.append(nothing(measured))
    # Findings without known savings come last, behind "nothing to gain".
    return sorted(worth, key=lambda finding: (finding.id != "nothing" and not finding.seconds, -finding.seconds))


def nothing(measured: Measured) -> Finding:
    """Return the finding that no change is worth it."""
    seconds = {way: seconds_text(measured.creation(way) or 0.0) for way in measured.ways}
    return Finding(
        id="nothing",
        title=f"nothing to gain: {measured.usual} creates the sessions on {describe(measured.devices)} in "
        f"{seconds[measured.usual]}, and no change that was tried is certain to shorten that",
        cause="none",
        seconds=0.0,
        evidence=[f"{way} creates the sessions in {text}" for way, text in seconds.items()],
        change="keep what you have",
    )
