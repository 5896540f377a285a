"""What the first run has that the second has not, by the kind of operator, from ONNX Runtime's profile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .events import RawSpan

_SUFFIX = "_kernel_time"
_LEAST_NS = 20_000

# Whose first run on a GPU is a search among algorithms, and whose first one makes cuBLAS's handle and workspace.
_SEARCHING = {"Conv", "FusedConv", "ConvTranspose", "NhwcConv"}
_MULTIPLYING = {"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Attention", "MultiHeadAttention", "GroupQueryAttention"}


@dataclass(frozen=True)
class Node:
    """A node in one run: nanoseconds since the profile began."""

    name: str
    operator: str
    start: int
    length: int


@dataclass(frozen=True)
class Run:
    """A run in a profile: nanoseconds since the profile began, and the nodes in their order."""

    start: int
    end: int
    nodes: Sequence[Node]


def read_profile(path: Path) -> list[Run]:
    """The runs in a profile, in their order; empty where it cannot be read."""
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    whole = [entry for entry in entries if entry.get("ph") == "X" and "ts" in entry]
    runs = sorted((entry for entry in whole if entry["name"] == "model_run"), key=lambda entry: entry["ts"])
    nodes = sorted(
        (entry for entry in whole if entry.get("cat") == "Node" and entry["name"].endswith(_SUFFIX)),
        key=lambda entry: (entry["ts"], -entry["dur"]),
    )
    found = []
    for run in runs:
        start, end = run["ts"], run["ts"] + run["dur"]
        inside, reached = [], start
        for node in nodes:
            # Nodes of sub-graphs lie inside the node that has them.
            if start <= node["ts"] < end and node["ts"] >= reached:
                reached = node["ts"] + node["dur"]
                operator = node.get("args", {}).get("op_name", "?")
                inside.append(Node(node["name"].removesuffix(_SUFFIX), operator, node["ts"] * 1000, node["dur"] * 1000))
        found.append(Run(start * 1000, end * 1000, inside))
    return found


def split(span: RawSpan, second: int, runs: Sequence[Run]) -> list[RawSpan]:
    """The spans inside of a first run that only it has.

    Args:
        span: the first run.
        second: nanoseconds of the second run of the same inputs.
        runs: the session's runs in its profile; empty without one.
    """
    assert span.end is not None
    on_gpu = span.device.startswith("cuda:")
    excess = span.end - span.start - second
    if len(runs) < 2:
        if excess < _LEAST_NS:
            return []
        cause = "load kernels" if on_gpu else "first use"
        return [replace(span, cause=cause, name="first use", end=span.start + excess, cpu=None)]
    # The profile's clock is laid on ours where the run ends: what the call has besides comes mostly before it.
    offset = span.end - runs[0].end
    usual: Mapping[str, int] = {node.name: node.length for node in runs[1].nodes}
    found = []
    multiplied = False
    before = _lead(runs[0]) - _lead(runs[1])
    if before >= _LEAST_NS:
        found.append(
            _piece(span, "handles" if on_gpu else "first use", "before the nodes", offset + runs[0].start, before)
        )
    for node in runs[0].nodes:
        more = node.length - usual.get(node.name, 0)
        cause = "first use"
        if on_gpu:
            cause = "load kernels"
            if node.operator in _SEARCHING:
                cause = "algorithm search"
            elif node.operator in _MULTIPLYING and not multiplied:
                cause, multiplied = "handles", True
        if more >= _LEAST_NS:
            found.append(_piece(span, cause, f"first {node.operator}", offset + node.start, more))
    # A node may be slow in either run by chance; the runs as a whole say how much there is to explain.
    kept = []
    for piece in sorted(found, key=lambda piece: piece.start - (piece.end or 0)):
        length = min((piece.end or 0) - piece.start, excess)
        if length > 0:
            excess -= length
            kept.append(replace(piece, end=piece.start + length))
    return kept


def _lead(run: Run) -> int:
    return run.nodes[0].start - run.start if run.nodes else 0


def _piece(span: RawSpan, cause: str, name: str, start: int, length: int) -> RawSpan:
    assert span.end is not None
    return replace(
        span, cause=cause, name=name, start=max(span.start, start), end=min(span.end, start + length), cpu=None
    )
