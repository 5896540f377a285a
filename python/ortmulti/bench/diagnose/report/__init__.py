"""Reports of a diagnosis: in the terminal, as a page and as a plot. A diagnosis from a file is checked here first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti.bench.measure import results
from ortmulti.errors import InvalidArgument

# What the reports read. A "?" ends the name of a field that may be missing or null; "" is any name.
_TIMES = {"start": float, "end": float, "cpu?": float}
_RUN = {
    "experiment": str,
    "way": str,
    "devices": [str],
    "cache?": str,
    "error?": str,
    "wall?": float,
    "spans?": [{"cause": str, "name": str, "thread": int, "session?": int, "device": str, **_TIMES}],
    "causes?": {"": float},
    "explained?": float,
}
_FINDING = {
    "id": str,
    "title": str,
    "cause": str,
    "seconds": float,
    "share": float,
    "evidence": [str],
    "change": str,
    "command?": str,
    "verified?": {"before": float, "after": float, "speedup": float, "interval": [float], "what": str},
}
_BOTTLENECK = {"what": str, "share?": float, "evidence": str}
_MACHINE = {
    "cpu": {"model?": str, "architecture": str, "usable_physical_cores": int},
    "gpus?": [{"name": str}],
    "driver?": {"version?": str},
    "system?": dict,
    "memory?": {"total?": float},
    "environment?": dict,
}
_DOCUMENT = {
    "partial?": str,
    "runs": [_RUN],
    "serialization?": [{"way": str, "devices": int, "speedup?": float, "ideal?": float, "on": [_BOTTLENECK]}],
    "prediction?": {"best": str, "seconds": {"": float}, "why": str},
    "findings": [_FINDING],
    "machine": _MACHINE,
    "releases": dict,
    "models": [{"name?": str, "path?": str, "bytes?": float, "external_bytes?": float}],
    "settings?": dict,
    "command?": list,
}
_MAX_NUMBER = 1e15  # of seconds and bytes; sums of larger ones could become infinite

_NAMES = {
    str: "text",
    int: "a whole number",
    float: f"a number up to {_MAX_NUMBER:g}",
    dict: "an object",
    list: "a list",
}


def load_document(path: Path) -> dict[str, Any]:
    """Read a diagnosis that `ortmulti diagnose --json` has written.

    Args:
        path: the file.

    Returns:
        The document; the reports take it as it is.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: it is not a diagnosis, has another schema version, or a field is missing or has another type.
    """
    document = results.load(path)
    if document.get("kind") != "diagnose":
        raise InvalidArgument(f"{path} is a result of kind {document.get('kind')!r}, not a diagnosis")
    try:
        check_document(document)
        json.dumps(document, allow_nan=False)  # numbers and depth of the settings, of which the page shows all
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not a whole diagnosis: {error}") from error
    return document


def check_document(document: Mapping[str, Any]) -> None:
    """Raise `InvalidArgument`, which names it, if a field that the reports read is missing or not of its type."""
    _check(document, _DOCUMENT, "")
    for number, run in enumerate(document["runs"]):
        where = f"runs[{number}]"
        for place, span in enumerate(run.get("spans") or ()):
            if span["end"] < span["start"]:
                raise InvalidArgument(f"{where}.spans[{place}] ends before it starts")
        for cause, seconds in (run.get("causes") or {}).items():
            if seconds < 0:
                raise InvalidArgument(f"{where}.causes[{cause!r}] is negative")
    for number, finding in enumerate(document["findings"]):
        if finding.get("verified") and len(finding["verified"]["interval"]) != 2:
            raise InvalidArgument(f"findings[{number}].verified.interval has not two ends")


def _check(value: Any, shape: Any, where: str) -> None:
    kind = shape if isinstance(shape, type) else type(shape)
    right = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
    if not right or (kind is float and not abs(value) <= _MAX_NUMBER):
        shown = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
        raise InvalidArgument(f"{where or 'the document'} is {shown[:60]}, not {_NAMES[kind]}")
    if isinstance(shape, list):
        for number, item in enumerate(value):
            _check(item, shape[0], f"{where}[{number}]")
    elif isinstance(shape, dict) and "" in shape:
        for name, item in value.items():
            _check(item, shape[""], f"{where}[{name!r}]")
    elif isinstance(shape, dict):
        for field, inner in shape.items():
            name = field.removesuffix("?")
            place = f"{where}.{name}".lstrip(".")
            if value.get(name) is not None:
                _check(value[name], inner, place)
            elif name == field:
                raise InvalidArgument(f"{place} is missing")
