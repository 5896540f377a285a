"""Phases of a creation and of a first run: from ONNX Runtime's log, its profile, and the core's timeline."""

from __future__ import annotations

import calendar
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple


@dataclass
class Span:
    """A part of one thread's time, in nanoseconds of `time.monotonic_ns`'s clock."""

    cause: str | None  # a name of `causes.CAUSES`; None if the inner spans and the gaps between them say more
    name: str
    start: int
    end: int
    pid: int
    thread: int
    session: int | None = None
    device: str = ""
    waits_for: tuple[str, ...] = ()  # the causes of other threads' work for which this thread waits

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda:")

    def part(self, start: int, end: int, cause: str | None = None, name: str = "") -> Span:
        """Return the span between other times, and with another cause and name if they are given."""
        return replace(self, cause=cause or self.cause, name=name or self.name, start=start, end=end)

    def common(self, start: int, end: int) -> int:
        """Return how long it lasts between two times; negative if it does not reach them."""
        return min(self.end, end) - max(self.start, start)


CREATION = "create session"  # the span of ONNX Runtime's own work for a session, which its log divides further

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
    """Return the phases of one creation by the marks inside of it, without gaps; `before`: the first one's cause."""
    found: list[Span] = []
    previous, left = span.start, (before, "set up")
    inside = [mark for mark in marks if span.start <= mark.time <= span.end]
    for moment, ended, following in [*_tell(inside), (span.end, None, left)]:
        if moment > previous:
            cause, name = ended or left
            if found and (found[-1].cause, found[-1].name) == (cause, name):
                previous = found.pop().start
            found.append(span.part(previous, moment, cause, name))
            previous = moment
        left = following
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


def _tell(marks: Sequence[Mark]) -> Iterator[tuple[int, _Told | None, _Told]]:
    """Yield each time at which a phase ends, with this phase's cause and name (None: as announced before), and the next
    phase's as far as known.
    """
    level = "optimization level 1"
    last: _Told = ("set up", "set up")
    transforming = inlined = False
    for moment, text in marks:
        if transformer := _TRANSFORMER.match(text):
            name = transformer[1]
            # Since 1.31 the weights in the model's file become tensors just before the first one.
            first = name == _FIRST_TRANSFORMER and not transforming
            before = _TENSORS if inlined else last
            if name == _FIRST_OF_LEVEL_2:
                level = "optimization level 2"
            if name in _REQUIRED:
                last = ("other optimization", name)
            elif name in _LAYOUT or (name.startswith("TransposeOptimizer_") and level != "optimization level 2"):
                last = ("optimization level 3", "optimize")
            else:
                last = (level, "optimize")
            transforming = True
            # What a change entails is done after its line, and belongs to it; else what comes next says what it was.
            yield moment, before if first else last, _PLAN
        elif text.startswith(_CLEANING) and transforming:
            yield moment, last, _PLAN
        elif text.startswith("Running graph optimizations in loop"):
            ended = ("planning", "partition") if level == "optimization level 1" else last
            level = "optimization level 2"
            yield moment, ended, (level, "optimize")
        elif step := next((step for step in _STEPS if re.match(step[0], text)), None):
            inlined |= step[2] == _TENSORS
            yield moment, *step[1:]


# --- Profiles of the first runs ---------------------------------------------------------------------------------------

_SUFFIX = "_kernel_time"
_LEAST_NS = 20_000

# Operators whose first run on a GPU searches algorithms, or makes cuBLAS's handle and workspace.
_SEARCHING = {"Conv", "FusedConv", "ConvTranspose", "NhwcConv"}
_MULTIPLYING = {"MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Attention", "MultiHeadAttention", "GroupQueryAttention"}


class Node(NamedTuple):
    """A node in one run: nanoseconds since the profile began. Without an operator: what came before the others."""

    name: str
    operator: str
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def read_profile(path: Path) -> list[tuple[int, list[Node]]]:
    """Return the end and the nodes of each run in a profile, in their order; empty where it cannot be read."""
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    whole = [entry for entry in entries if entry.get("ph") == "X" and "ts" in entry]
    whole.sort(key=lambda entry: (entry["ts"], -entry["dur"]))
    nodes = [
        Node(entry["name"].removesuffix(_SUFFIX), entry.get("args", {}).get("op_name", "?"), *_times(entry))
        for entry in whole
        if entry.get("cat") == "Node" and entry["name"].endswith(_SUFFIX)
    ]
    found = []
    for start, length in [_times(entry) for entry in whole if entry["name"] == "model_run"]:
        inside = [Node("before the nodes", "", start, 0)]
        for node in nodes:
            # Nodes of sub-graphs lie inside the node that has them.
            if max(inside[-1].end, start) <= node.start < start + length:
                inside.append(node)
        if len(inside) > 1:
            inside[0] = inside[0]._replace(length=inside[1].start - start)
        found.append((start + length, inside))
    return found


def _times(entry: Mapping[str, Any]) -> tuple[int, int]:
    return entry["ts"] * 1000, entry["dur"] * 1000


def split_first_run(span: Span, second: int, runs: Sequence[tuple[int, Sequence[Node]]]) -> list[Span]:
    """Return the spans inside of a first run that only it has.

    `second` are nanoseconds of the second run of the same inputs; `runs` those of `read_profile`, empty without one.
    """
    usual_cause = "load kernels" if span.on_gpu else "first use"
    excess = span.length - second
    pieces = [] if len(runs) > 1 else [(usual_cause, "first use", span.start, excess)]
    if len(runs) > 1:
        (end, nodes), (_, again) = runs[:2]
        usual = {node.name: node.length for node in again}
        multiplied = False
        for node in nodes:
            cause = usual_cause
            if span.on_gpu and node.operator in _SEARCHING:
                cause = "algorithm search"
            elif span.on_gpu and (not node.operator or (node.operator in _MULTIPLYING and not multiplied)):
                cause = "handles"
                multiplied |= bool(node.operator)
            name = f"first {node.operator}" if node.operator else node.name
            # The profile's clock is laid on ours where the run ends: what the call has besides comes mostly before it.
            start = node.start + span.end - end
            pieces.append((cause, name, start, node.length - usual.get(node.name, 0)))
    # A node may be slow in either run by chance; the runs as a whole say how much there is to explain.
    kept = []
    for cause, name, start, length in sorted(pieces, key=lambda piece: -piece[3]):
        begin = max(span.start, start)
        end = min(span.end, start + length, begin + excess)
        if length >= _LEAST_NS and end > begin:
            excess -= end - begin
            kept.append(span.part(begin, end, cause, name))
    return kept
