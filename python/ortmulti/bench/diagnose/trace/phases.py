"""Phases of a creation and of a first run.

They come from ONNX Runtime's log, from its profile, and from the timeline of ortmulti's own core.
"""

from __future__ import annotations

import calendar
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ortmulti.bench.diagnose.trace.events import Span

CREATION = "create session"
"""The span of ONNX Runtime's own work for a session, which its log divides further."""

# The core's spans by their names: each one's cause, and for a wait the causes for which it waits.
_CORE_SPANS: Sequence[tuple[str, str | None, tuple[str, ...]]] = (
    (CREATION, None, ()),
    ("cuInit", "cuInit", ()),
    ("context", "context", ()),
    ("open .*", "libraries", ()),
    ("wait for (driver and check|CUDA libraries)", "libraries", ("cuInit", "context", "libraries")),
    ("wait for context", "wait for another session", ("context", "cuInit", "libraries")),
    ("wait for weights", "wait for another session", ("copy weights", "stage weights", "context", "cuInit")),
    ("wait for turn", "wait for another session", ()),
    ("index model", "read model", ()),
    ("(allocate|load) weights", "stage weights", ()),
    ("copy weights.*", "copy weights", ()),
    ("preload cu.*|free what was preloaded with.*", "handles", ()),
    ("preload .*", "load kernels", ()),
    (".*optimized model.*", "optimized model", ()),
    (".*", "set up", ()),
)


def core_spans(events: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> list[Span]:
    """Return spans of the core's timeline as the process wrote them, with the sessions' numbers.

    If a device has more sessions than spans, the last ones are handles.
    """
    left: dict[str, list[int]] = {}
    for number, device in enumerate(devices):
        left.setdefault(device, []).append(number)
    created = Counter(event["device"] for event in events if event["name"] == CREATION)
    spans = []
    for event in sorted(events, key=lambda event: (event["start"], -event["end"])):
        if event["start"] == event["end"]:  # a remark, not a stretch of time
            continue
        cause, waits_for = next(row[1:] for row in _CORE_SPANS if re.fullmatch(row[0], event["name"]))
        span = Span(cause, **event, waits_for=waits_for)
        if span.name == CREATION:
            # A device's last creations are those of its sessions; one before them made an optimized model.
            if created[span.device] <= len(left.get(span.device, ())):
                span.session = left[span.device].pop(0)
            created[span.device] -= 1
        spans.append(span)
    return spans


# --- ONNX Runtime's log -----------------------------------------------------------------------------------------------

# "2026-11-22 00:04:11.215485586 [I:onnxruntime:session-0, graph.cc:15 Apply] text", in UTC or local time.
_LINE = re.compile(
    r"(?P<second>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(?P<fraction>\d{9}) "
    r"\[I:onnxruntime:session-(?P<session>\d+), [^\]]*\] (?P<text>.*)"
)
_TRANSFORMER = re.compile(r"GraphTransformer (\w+) modified: (\d)")

_QUARTER_HOUR_NS = 900 * 10**9


class Mark(NamedTuple):
    """A line of ONNX Runtime's log: nanoseconds of `time.monotonic_ns`'s clock, and the message or its beginning."""

    time: int
    text: str


def read_log(path: Path, realtime_offset: int) -> dict[int, list[Mark]]:
    """Return the marks of each session, by the number in its logid, from onnxruntime's standard error.

    `realtime_offset` are nanoseconds by which the system's clock is ahead of `time.monotonic_ns`.
    """
    found: dict[int, list[Mark]] = {}
    zone: int | None = None
    with path.open(errors="replace") as file:
        for match in filter(None, map(_LINE.search, file)):
            second = calendar.timegm(time.strptime(match["second"], "%Y-%m-%d %H:%M:%S"))
            moment = second * 10**9 + int(match["fraction"]) - realtime_offset
            if zone is None:  # the log is as new as this process; what differs by more is the time zone
                zone = round((moment - time.monotonic_ns()) / _QUARTER_HOUR_NS) * _QUARTER_HOUR_NS
            found.setdefault(int(match["session"]), []).append(Mark(moment - zone, match["text"][:120]))
    return {session: sorted(marks, key=lambda mark: mark.time) for session, marks in found.items()}


def phases(span: Span, marks: Sequence[Mark], before: str = "set up") -> list[Span]:
    """Return the phases of one creation by the marks inside of it, without gaps.

    `before` is the cause of the time before the first mark.
    """
    found: list[Span] = []
    previous, left = span.start, (before, "set up")
    for mark, ended, following in _tell([mark for mark in marks if span.start <= mark.time <= span.end]):
        if mark.time > previous:
            cause, name = ended or left
            if found and (found[-1].cause, found[-1].name) == (cause, name):
                previous = found.pop().start
            found.append(span.part(previous, mark.time, cause, name))
            previous = mark.time
        left = following
    if span.end > previous:
        found.append(span.part(previous, span.end, *left))
    return found


_Told = tuple[str, str]

_TENSORS: _Told = ("read weights", "weights to tensors")
_PLAN: _Told = ("planning", "plan")
# What a message begins with, the phase that it ends (None: as announced before), and the next phase.
_STEPS: Sequence[tuple[str, _Told | None, _Told]] = (
    ("Dynamic block base", None, ("read model", "read the model")),
    ("Creating and using per session threadpools", None, ("read model", "read the model")),
    ("Session Options", None, ("set up", "thread pools")),
    ("Initializing session", None, ("set up", "providers")),
    ("This model does not have any local functions|.*AOT", None, _TENSORS),
    (".*DeviceBasedPartition", _PLAN, _PLAN),
    ("Saving initialized tensors", _PLAN, ("read weights", "read weights")),
    ("Done saving initialized tensors", None, ("prepacking", "make kernels")),
    ("Session successfully initialized", None, ("set up", "finish")),
)
# Which transformer belongs to which level is known by where it runs; these alone run after level 2 and beside it.
_LAYOUT = {"NchwcTransformer", "NhwcTransformer", "ConvAddActivationFusion"}
_REQUIRED = {
    "RemoveDuplicateCastTransformer",
    "CastFloat16Transformer",
    "FuseFp16InitializerToFp32NodeTransformer",
    "MemcpyTransformer",
}
_FIRST_TRANSFORMER = "EnsureUniqueDQForNodeUnit"
_FIRST_OF_LEVEL_2 = "Level2_RuleBasedTransformer"
# The message of the clean-up after a transformer, which belongs to the transformer.
_CLEANING = ("Removing initializer", "Removing NodeArg")


def _tell(marks: Sequence[Mark]) -> Iterator[tuple[Mark, _Told | None, _Told]]:
    """Yield each mark that ends a phase, with this phase's cause and name (None: as announced before), and the next
    phase's as far as known.
    """
    level = "optimization level 1"
    last: _Told = ("set up", "set up")
    transforming = inlined = False
    for mark in marks:
        text = mark.text
        transformer = _TRANSFORMER.match(text)
        if transformer is not None:
            name = transformer[1]
            if name == _FIRST_TRANSFORMER and not transforming:
                # Since 1.31 the weights in the model's file become tensors just before.
                ended: _Told = _TENSORS if inlined else last
                last = (level, "optimize")
            else:
                if name == _FIRST_OF_LEVEL_2:
                    level = "optimization level 2"
                cause = level
                if name in _LAYOUT or (name.startswith("TransposeOptimizer_") and level != "optimization level 2"):
                    cause = "optimization level 3"
                elif name in _REQUIRED:
                    cause = "other optimization"
                ended = last = (cause, "optimize" if cause != "other optimization" else name)
            transforming = True
            # What a change entails is done after its line, and belongs to it; else what comes next says what it was.
            yield mark, ended, _PLAN
        elif text.startswith(_CLEANING) and transforming:
            yield mark, last, _PLAN
        elif text.startswith("Running graph optimizations in loop"):
            ended = ("planning", "partition") if level == "optimization level 1" else last
            level = "optimization level 2"
            yield mark, ended, (level, "optimize")
        else:
            for beginning, ended_by_it, following in _STEPS:
                if re.match(beginning, text):
                    inlined |= following == _TENSORS
                    yield mark, ended_by_it, following
                    break


# --- Profiles of the first runs ---------------------------------------------------------------------------------------

_SUFFIX = "_kernel_time"
_LEAST_NS = 20_000

# Operators whose first run on a GPU searches algorithms, or makes cuBLAS's handle and workspace.
_SEARCHING = {"Conv", "FusedConv", "ConvTranspose", "NhwcConv"}
_MULTIPLYING = {"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Attention", "MultiHeadAttention", "GroupQueryAttention"}


class Node(NamedTuple):
    """A node in one run: nanoseconds since the profile began."""

    name: str
    operator: str
    start: int
    length: int


class Run(NamedTuple):
    """A run in a profile: nanoseconds since the profile began, and the nodes in their order."""

    start: int
    end: int
    nodes: Sequence[Node]

    @property
    def lead(self) -> int:
        """Nanoseconds before the first node."""
        return self.nodes[0].start - self.start if self.nodes else 0


def read_profile(path: Path) -> list[Run]:
    """Return the runs in a profile, in their order; empty where it cannot be read."""
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    whole = [entry for entry in entries if entry.get("ph") == "X" and "ts" in entry]
    whole.sort(key=lambda entry: (entry["ts"], -entry["dur"]))
    nodes = [entry for entry in whole if entry.get("cat") == "Node" and entry["name"].endswith(_SUFFIX)]
    found = []
    for run in [entry for entry in whole if entry["name"] == "model_run"]:
        start, end = run["ts"], run["ts"] + run["dur"]
        inside, reached = [], start
        for node in nodes:
            # Nodes of sub-graphs lie inside the node that has them.
            if reached <= node["ts"] < end:
                reached = node["ts"] + node["dur"]
                operator = node.get("args", {}).get("op_name", "?")
                inside.append(Node(node["name"].removesuffix(_SUFFIX), operator, node["ts"] * 1000, node["dur"] * 1000))
        found.append(Run(start * 1000, end * 1000, inside))
    return found


def split_first_run(span: Span, second: int, runs: Sequence[Run]) -> list[Span]:
    """Return the spans inside of a first run that only it has.

    Args:
        span: the first run.
        second: nanoseconds of the second run of the same inputs.
        runs: the session's runs in its profile; empty without one.
    """
    usual_cause = "load kernels" if span.on_gpu else "first use"
    excess = span.length - second
    if len(runs) < 2:
        pieces = [(usual_cause, "first use", span.start, excess)]
    else:
        # The profile's clock is laid on ours where the run ends: what the call has besides comes mostly before it.
        first, again = runs[:2]
        offset = span.end - first.end
        usual = {node.name: node.length for node in again.nodes}
        cause = "handles" if span.on_gpu else usual_cause
        pieces = [(cause, "before the nodes", offset + first.start, first.lead - again.lead)]
        multiplied = False
        for node in first.nodes:
            cause = usual_cause
            if span.on_gpu and node.operator in _SEARCHING:
                cause = "algorithm search"
            elif span.on_gpu and node.operator in _MULTIPLYING and not multiplied:
                cause, multiplied = "handles", True
            more = node.length - usual.get(node.name, 0)
            pieces.append((cause, f"first {node.operator}", offset + node.start, more))
    # A node may be slow in either run by chance; the runs as a whole say how much there is to explain.
    kept = []
    for cause, name, start, length in sorted(pieces, key=lambda piece: -piece[3]):
        begin = max(span.start, start)
        end = min(span.end, start + length, begin + excess)
        if length >= _LEAST_NS and end > begin:
            excess -= end - begin
            kept.append(span.part(begin, end, cause, name))
    return kept
