"""One diagnosis, in a process of its own, so that it sees the release of ONNX Runtime that the process was given."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Diagnoses a model.

    Args:
        spec: "model" (path), "devices" (one for each session), "quick", "repeat" and "budget" (see
            `ortmulti.bench.diagnose.diagnose`; None is its default).

    Returns:
        The document of kind "diagnose".
    """
    diagnose = importlib.import_module("ortmulti.bench.diagnose").diagnose
    document: dict[str, Any] = diagnose(
        spec["model"],
        spec["devices"],
        quick=spec["quick"],
        repeat=spec["repeat"],
        budget=spec["budget"],
        progress=lambda *what: print(*what, file=sys.stderr),
    )
    return document
