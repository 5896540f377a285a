"""Measures cases with several releases of ONNX Runtime, in rounds, each measurement in a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmulti.errors import InvalidArgument
from ortmulti.tools.measure import fresh_process, page_cache
from ortmulti.tools.measure.rounds import RoundsInterrupted, failure, measure_rounds, rotated

from .releases import Release

RELEASE = "{release}"
"""What stands for the release's name in the texts of a `Case.spec`."""


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        name: by which results know it.
        module: the module whose `measure` a fresh process calls.
        spec: its argument, which JSON can carry; `RELEASE` in a text is replaced.
        files: read into the page cache before.
        environment: variables of the process.
        prepare: whether it is measured once before anything counts, with each release: what makes something that
            later measurements are to find. Of several rounds the first case always is, since it loads the libraries
            from the disk.
        counted: whether it is measured at all, besides that.
        refused: by release, why it cannot be measured there; it is left out then.
    """

    name: str
    module: str
    spec: Mapping[str, Any]
    files: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: bool = False
    counted: bool = True
    refused: Mapping[str, str] = field(default_factory=dict)


Tell = Callable[[str], None]


def measure(
    cases: Sequence[Case],
    releases: Sequence[Release],
    repeat: int,
    *,
    timeout: float = 600.0,
    budget: float | None = None,
    tell: Tell = lambda _: None,
) -> list[dict[str, Any]]:
    """Measures every case with every release, `repeat` times.

    A round measures each once. Cases and releases take turns, and each round begins with others, so that what changes
    with time meets all of them alike. What fails becomes part of the result, and the others go on. Ctrl-C ends the
    rounds: what was measured by then is returned, and the measurement that comes next has failed.

    Args:
        cases: what to measure; their names are unique.
        releases: with which.
        repeat: rounds.
        timeout: seconds that one measurement may take.
        budget: seconds for all rounds; no round begins that would end later, going by the longest before it. The
            first is always measured. None: any number.
        tell: called with a text before each measurement.

    Returns:
        For each measurement "case", "release", "round" and what `measure` of the module returned, or "error" and
        "stderr".

    Raises:
        InvalidArgument: nothing to measure.
    """
    if not cases or not releases or repeat < 1:
        raise InvalidArgument(f"nothing to measure: {len(cases)} cases, {len(releases)} releases, {repeat} rounds")
    found: list[dict[str, Any]] = []
    for release in releases:
        for case in cases:
            if (case.prepare or (case is cases[0] and repeat > 1)) and release.name not in case.refused:
                tell(f"uncounted: {case.name}, {release.name}")
                result = once(case, release, timeout)
                if "error" in result and not case.counted:  # others will show themselves again, counted
                    found.append({**result, "case": case.name, "release": release.name, "round": -1})
    chosen = {
        (case.name, release.name): (case, release)
        for case in cases
        for release in releases
        if case.counted and release.name not in case.refused
    }

    def order(_: object, number: int) -> list[tuple[str, str]]:
        both = [(case.name, release.name) for case in rotated(cases, number) for release in rotated(releases, number)]
        return [one for one in both if one in chosen]

    def measure_one(one: tuple[str, str], number: int) -> dict[str, Any]:
        case, release = chosen[one]
        tell(f"round {number + 1} of {repeat}: {case.name}, {release.name}")
        result = once(case, release, timeout)
        return {**result, "case": case.name, "release": release.name, "round": number}

    stopped: list[dict[str, Any]] = []
    try:
        measured = measure_rounds([*chosen], measure_one, repeat, order=order, budget=budget)
    except RoundsInterrupted as interrupt:
        measured = interrupt.rounds
        last = len(measured) - 1
        case_name, release_name = next(
            (one for one in order(None, last) if one not in measured[-1]), next(iter(chosen))
        )
        stopped = [{"error": "interrupted", "stderr": "", "case": case_name, "release": release_name, "round": last}]
    return found + [result for results in measured for result in results.values()] + stopped


def once(case: Case, release: Release, timeout: float) -> dict[str, Any]:
    """One measurement: what `measure` of the case's module returns, or "error" and "stderr"."""
    page_cache.warm(case.files)
    environment = {**case.environment, **release.environment}
    spec = {
        key: value.replace(RELEASE, release.name) if isinstance(value, str) else value
        for key, value in case.spec.items()
    }
    try:
        return fresh_process.run(case.module, spec, timeout, environment)
    except fresh_process.MeasurementError as error:
        return failure(error)


def failures(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """What went wrong, one text for each measurement that failed."""
    return [f"{one['case']}, {one['release']}: {one['error']}" for one in measurements if "error" in one]
