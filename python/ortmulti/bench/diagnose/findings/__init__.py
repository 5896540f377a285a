"""Conclusions from the runs of a diagnosis: rules give findings, and the one whose change would save most comes first.

Each rule takes the runs, the way that findings are about, and the best way, and gives a finding or none. Rules are
independent. Two may find the same seconds, and only runs of the changes show which can be saved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ortmulti.bench.diagnose.findings import loading, machine, ways
from ortmulti.bench.diagnose.findings.finding import DriverStart, Finding, Recipe, Start
from ortmulti.bench.diagnose.measured import Measured, seconds_text
from ortmulti.bench.diagnose.serialization import prediction, serialization
from ortmulti.bench.measure.devices import describe

__all__ = ["DriverStart", "Finding", "Recipe", "Start", "conclude", "conclude_again", "find", "nothing"]

_RULES = (*ways.RULES, *loading.RULES, *machine.RULES)

# The smallest saving that is worth a change: a share of the creation, and seconds.
LEAST_SHARE = 0.05
LEAST_SECONDS = 0.02


def find(measured: Measured, prediction: Mapping[str, Any] | None) -> list[Finding]:
    """Apply every rule.

    Args:
        measured: the runs.
        prediction: see `ortmulti.bench.diagnose.serialization`.

    Returns:
        The findings that are worth a change, the largest saving first. Then findings without known seconds.
    """
    usual = measured.usual
    if usual is None or prediction is None:
        return []
    creation = measured.creation(usual) or 0.0
    least = max(LEAST_SECONDS, LEAST_SHARE * creation)
    worth = []
    for rule in _RULES:
        finding = rule(measured, usual, prediction["best"])
        if finding is None:
            continue
        seconds = max(finding.seconds, 0.0)
        share = finding.share or (seconds / creation if creation else 0.0)
        if seconds == 0.0 or seconds >= least:
            worth.append(dataclasses.replace(finding, seconds=seconds, share=min(max(share, 0.0), 1.0)))
    if not any(finding.seconds for finding in worth):
        worth.append(nothing(measured, prediction["best"]))
    # A rule's place settles ties. Findings without known savings come last, behind "nothing to gain".
    return sorted(worth, key=lambda finding: (finding.id != "nothing" and not finding.seconds, -finding.seconds))


def nothing(measured: Measured, best: str) -> Finding:
    """Return the finding that no change is worth it."""
    usual = measured.usual or best
    creation = measured.creation(usual) or 0.0
    evidence = [
        f"{way} creates the sessions in {seconds_text(seconds)}"
        for way in measured.ways
        if (seconds := measured.creation(way)) is not None
    ]
    return Finding(
        id="nothing",
        title=f"nothing to gain: {usual} creates the sessions on {describe(measured.devices)} in "
        f"{seconds_text(creation)}, and no change that was tried is certain to shorten that",
        cause="none",
        seconds=0.0,
        evidence=evidence,
        change="keep what you have",
    )


def conclude(document: dict[str, Any]) -> list[Finding]:
    """Fill in the conclusions from a document's runs, however few they are.

    Args:
        document: of kind "diagnose", with its runs; "serialization", "prediction" and "findings" are set.

    Returns:
        The findings, the largest saving first, each with a way to verify it.
    """
    conclude_again(document)
    found = find(Measured(document), document["prediction"])
    document["findings"] = [finding.as_json() for finding in found]
    return found


def conclude_again(document: dict[str, Any]) -> None:
    """Fill in a document's "serialization" and "prediction" alone, after further runs."""
    measured = Measured(document)
    document["serialization"] = serialization(measured)
    document["prediction"] = prediction(measured)
