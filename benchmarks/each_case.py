"""What benchmarks share whose cases are measured once each, one after the other, in a process of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortmulti.bench.measure import fresh_process, machine


def measure_each(
    module: str,
    cases: str,
    common: dict[str, Any],
    is_right: Callable[[str, dict[str, Any]], bool],
    path: Path | None,
    timeout: float,
) -> int:
    """Measure cases, print each result, and write all of them.

    Args:
        module: whose ``measure(spec)`` measures one: ``common`` and the case's name.
        cases: their names, with commas between.
        is_right: whether a case's result is as it should be.
        path: of the JSON; None: it is not written.
        timeout: seconds for a case.

    Returns:
        The exit status: 1 if a result is not right.
    """
    results: dict[str, Any] = {}
    for case in cases.split(","):
        environment = {"PYTHONPATH": ":".join(sys.path)}
        results[case] = fresh_process.run(module, {**common, "case": case}, timeout, environment)
        print(case, json.dumps(results[case]), flush=True)
    if path:
        report = {**common, "results": results, "machine": machine.describe()}
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(not all(is_right(case, found) for case, found in results.items()))
